package doctest

import (
	"encoding/json"
	"strings"
)

// Fence is one fenced block of a document.
type Fence struct {
	Path string
	Line int      // of its first line of text
	Info []string // the words after the backticks
	Body string
}

// Is says that the fence is of that kind, as "sh run".
func (f Fence) Is(kind string) bool { return strings.Join(f.Info, " ") == kind }

// fenceKinds are the infos that a fence may have, besides those of Go.
var fenceKinds = map[string]bool{
	"yaml policy": true, "yaml sidecar": true, "yaml envoy": true, "yaml envoy-fragment": true,
	"sh run": true, "sh show": true, "text": true, "text output": true, "text redis-acl": true, "json": true,
}

// mark is what opens and ends a fence.
const mark = "```"

// Fences returns the blocks of a document, in their order.
func (d Document) Fences() []Fence {
	var fences []Fence
	var open *Fence
	for i, line := range strings.Split(d.Text, "\n") {
		info, isMark := strings.CutPrefix(strings.TrimSpace(line), mark)
		switch {
		case open == nil && isMark:
			open = &Fence{Path: d.Path, Line: i + 2, Info: strings.Fields(info)}
		case open != nil && isMark && info == "":
			fences = append(fences, *open)
			open = nil
		case open != nil:
			open.Body += line + "\n"
		}
	}
	if open != nil {
		open.Info = []string{"never", "ended"}
		fences = append(fences, *open)
	}
	return fences
}

// Prose is the document with its fences blanked out, line for line.
func (d Document) Prose() []string {
	lines := strings.Split(d.Text, "\n")
	inside := false
	for i, line := range lines {
		isMark := strings.HasPrefix(strings.TrimSpace(line), mark)
		if isMark {
			inside = !inside
		}
		if inside || isMark {
			lines[i] = ""
		}
	}
	return lines
}

// CheckFences reports the fences that do not say what they are, so that no check passes them over.
func CheckFences(docs []Document) []string {
	var p problems
	for _, d := range docs {
		var before Fence
		for _, f := range d.Fences() {
			kind := strings.Join(f.Info, " ")
			switch {
			case len(f.Info) == 3 && f.Info[0] == "go":
			case !fenceKinds[kind]:
				p.add(f.Path, f.Line-1, "the fence is marked %q, which no test reads; internal/doctest lists the marks", kind)
			case kind == "text output" && !before.Is("sh run"):
				p.add(f.Path, f.Line-1, "the output follows no fence that is run")
			case kind == "json" && !json.Valid([]byte(f.Body)):
				p.add(f.Path, f.Line, "not valid JSON")
			}
			before = f
		}
	}
	return p
}
