// Package doctest reads README.md and docs/ so that tests can hold them to the code: which fenced blocks there are and
// what each says of itself, which commands stand in them, where links lead.
//
// A fence says what it is in the line that opens it:
//
//	yaml policy          a policy file, loaded by pkg/policy
//	yaml sidecar         settings, or some of them, loaded by pkg/sidecar
//	yaml envoy           a whole Envoy configuration, validated by Envoy
//	yaml envoy-fragment  parts of one, put into a frame and validated by Envoy
//	sh run               commands that a test runs in a copy of the tree
//	sh show              commands whose flags, targets and paths must exist
//	text output          what the run before printed; digits may differ, and … stands for anything
//	go DIR NAME          a part of that Example of the package in DIR
//	text redis-acl       what a Redis must allow, given to one
//	text, json           neither a command nor a configuration
//
// Anything else is a problem. Every check returns problems as text, each with file and line, so that its test can
// show both that our docs have none and that a bad document has some. Nothing here reads anything but its arguments,
// apart from Load and the Tree.
package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Document is one Markdown file.
type Document struct {
	Path string // relative to the root of the repository, with slashes
	Text string
}

// Load reads README.md and every .md file in docs/.
func Load(root string) ([]Document, error) {
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var docs []Document
	for _, path := range append([]string{filepath.Join(root, "README.md")}, paths...) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		docs = append(docs, Document{Path: filepath.ToSlash(rel), Text: string(text)})
	}
	return docs, nil
}

// Lines is the number of lines of the document.
func (d Document) Lines() int { return len(strings.Split(strings.TrimSuffix(d.Text, "\n"), "\n")) }

// problems collects what is wrong.
type problems []string

func (p *problems) add(path string, line int, format string, args ...any) {
	*p = append(*p, fmt.Sprintf("%s:%d: %s", path, line, fmt.Sprintf(format, args...)))
}
