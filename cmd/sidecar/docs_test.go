package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/weir-rl/weir/internal/doctest"
	"github.com/weir-rl/weir/internal/parts"
)

// TestDocumentedCommandLinesParse holds every call of this program in a fence
// of the docs, and every flag in their text, to the model of the command line.
func TestDocumentedCommandLinesParse(t *testing.T) {
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := doctest.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	calls, problems := checkCalls(docs)
	for _, p := range problems {
		t.Error(p)
	}
	if calls == 0 {
		t.Error("no call of this program was found in the docs")
	}
}

func TestBadCommandLinesAreFound(t *testing.T) {
	doc := doctest.Document{Path: "bad.md", Text: "Take `--take-over` or `--rls.take_over`.\n" + `
~~~sh show
bin/sidecar serve --config sidecar.yaml --rls.tpc 127.0.0.1:8081
bin/sidecar serve --config sidecar.yaml # fine
WEIR_X=1 sidecar chekc policies/
sidecar call --domain northstar
~~~
`}
	doc.Text = strings.ReplaceAll(doc.Text, "~~~", "```")
	_, got := checkCalls([]doctest.Document{doc})
	want := []string{`bad.md:4: .*--rls.tpc`, `bad.md:6: .*chekc`, `bad.md:7: .*--descriptor`, `bad.md:1: no command has the flag --take-over`}
	for i, w := range want {
		if i >= len(got) || !regexp.MustCompile(w).MatchString(got[i]) {
			t.Fatalf("problems = %q, want %q", got, want)
		}
	}
	if len(got) != len(want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
}

// span matches a flag at the begin of a text between backticks, with or
// without the command before it.
var span = regexp.MustCompile("`(?:sidecar [a-z]+ )?(--[a-z][a-z0-9._-]*)")

func checkCalls(docs []doctest.Document) (calls int, problems []string) {
	flags := map[string]bool{}
	for _, c := range doctest.Commands(docs) {
		args, ours := c.Sidecar()
		if !ours {
			continue
		}
		calls++
		if err := parse(args, flags); err != nil {
			problems = append(problems, fmt.Sprintf("%s:%d: sidecar %s: %v", c.Path, c.Line, strings.Join(args, " "), err))
		}
	}
	if calls == 0 {
		return 0, problems
	}
	for _, d := range docs {
		for i, line := range d.Prose() {
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				if !flags[m[1]] {
					problems = append(problems, fmt.Sprintf("%s:%d: no command has the flag %s", d.Path, i+1, m[1]))
				}
			}
		}
	}
	return calls, problems
}

// parse reads one command line, and adds the flags of all commands.
func parse(args []string, flags map[string]bool) error {
	parser, err := newParser(&env{stdout: io.Discard, stderr: io.Discard}, func(int) {})
	if err != nil {
		return err
	}
	var given []string
	nodes := append([]*kong.Node{parser.Model.Node}, parser.Model.Children...)
	for _, n := range nodes {
		for _, f := range n.Flags {
			flags["--"+f.Name] = true
		}
	}
	for _, a := range args {
		given = append(given, strings.ReplaceAll(a, "$PWD", "/work")) // as the shell would
	}
	_, err = parser.Parse(given)
	return err
}
