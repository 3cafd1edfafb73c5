package doctest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/doctest"
	"github.com/weir-rl/weir/internal/parts"
)

// readmeLines is how long the README may be: what does not fit belongs into docs/.
const readmeLines = 200

// repository returns its root, its docs and its tree.
func repository(t *testing.T) (string, []doctest.Document, doctest.Tree) {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := doctest.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := doctest.LoadTree(root)
	if err != nil {
		t.Fatal(err)
	}
	return root, docs, tree
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// wantProblems fails unless there is one problem for each of the texts, in their order, that contains it.
func wantProblems(t *testing.T, got []string, want ...string) {
	t.Helper()
	for i, w := range want {
		if i >= len(got) || !strings.Contains(got[i], w) {
			t.Fatalf("problems:\n%s\nwant %d that say:\n%s", strings.Join(got, "\n"), len(want), strings.Join(want, "\n"))
		}
	}
	if len(got) > len(want) {
		t.Errorf("more problems than %d:\n%s", len(want), strings.Join(got[len(want):], "\n"))
	}
}

// document is a bad or good document for a test of a check; ~~~ stands for the mark of a fence.
func document(text string) []doctest.Document {
	return []doctest.Document{{Path: "docs/TEST.md", Text: strings.ReplaceAll(text, "~~~", "```")}}
}

func TestReadmeIsShort(t *testing.T) {
	_, docs, _ := repository(t)
	if n := docs[0].Lines(); docs[0].Path != "README.md" || n > readmeLines {
		t.Errorf("%s has %d lines, want at most %d", docs[0].Path, n, readmeLines)
	}
	if n := (doctest.Document{Text: strings.Repeat("x\n", readmeLines+1)}).Lines(); n != readmeLines+1 {
		t.Errorf("Lines() = %d, want %d", n, readmeLines+1)
	}
}

func TestFencesSayWhatTheyAre(t *testing.T) {
	_, docs, _ := repository(t)
	report(t, doctest.CheckFences(docs))
	kinds := map[string]int{}
	for _, d := range docs {
		for _, f := range d.Fences() {
			kinds[strings.Join(f.Info, " ")]++
		}
	}
	for _, kind := range []string{"yaml policy", "yaml sidecar", "yaml envoy-fragment", "sh run", "sh show", "text output"} {
		if kinds[kind] == 0 {
			t.Errorf("no fence is marked %s, so its check proves nothing", kind)
		}
	}
}

func TestUnmarkedFencesAreFound(t *testing.T) {
	wantProblems(t, doctest.CheckFences(document(`
~~~sh
make demo
~~~
~~~bash run
~~~
~~~console
~~~
~~~yaml
~~~
~~~
~~~
~~~go
~~~
~~~text output
~~~
~~~json
{,}
~~~
~~~sh run
~~~
~~~text output
~~~
~~~text
`)),
		`TEST.md:2: the fence is marked "sh"`, `"bash run"`, `"console"`, `"yaml"`, `""`, `"go"`,
		`TEST.md:15: the output follows no fence`, `TEST.md:18: not valid JSON`, `"never ended"`)
}

func TestLinksLeadSomewhere(t *testing.T) {
	_, docs, tree := repository(t)
	report(t, doctest.CheckLinks(docs, tree))
}

func TestBrokenLinksAreFound(t *testing.T) {
	_, _, tree := repository(t)
	docs := document("# A head, `b`-c!\n# A head, `b`-c!\n" +
		"[good](ARCHITECTURE.md) [good](../README.md) [good](#a-head-b-c) [good](#a-head-b-c-1) [good](../pkg/limit) [web](https://example.com/x)\n" +
		"`[code](nowhere.md)`\n" +
		"[bad](NOWHERE.md)\n[bad](ARCHITECTURE.md#nothing)\n[bad](#c)\n[bad](../../outside)\n")
	docs[0].Path = "docs/GUARANTEES.md" // The tree must have it.
	wantProblems(t, doctest.CheckLinks(docs, tree),
		"GUARANTEES.md:5: the link leads to docs/NOWHERE.md", "GUARANTEES.md:6: the link leads to a heading of docs/ARCHITECTURE.md",
		"GUARANTEES.md:7: the link leads to #c", "GUARANTEES.md:8: the link leads to ../outside")
}

func TestCommandsNameWhatExists(t *testing.T) {
	_, docs, tree := repository(t)
	report(t, doctest.CheckCommands(docs, tree))
	report(t, doctest.CheckSpans(docs, tree))
	if len(doctest.Commands(docs)) == 0 {
		t.Error("no command was found")
	}
}

func TestWrongCommandsAreFound(t *testing.T) {
	_, _, tree := repository(t)
	wantProblems(t, doctest.CheckCommands(document(`
~~~sh show
make demo && KEEP=1 make demo   # make nothing
make demmo
KEPT=1 make demo; make RACE=0 test
go build ./cmd/sidecar
go build -o bin/sidecar \
  ./cmd/sidecarr
envoi -c envoy/northstar.yaml >/dev/null 2>&1 &
envoy -c envoy/southstar.yaml | cat
cd weir/main
~~~
`), tree), "TEST.md:4: the Makefile has no target demmo", "TEST.md:5: make knows no variable KEPT",
		"TEST.md:7: ./cmd/sidecarr does not exist", "TEST.md:9: envoi is no program", "TEST.md:10: envoy/southstar.yaml", "TEST.md:10: cat is no program")
	wantProblems(t, doctest.CheckSpans(document("`make demo` `KEEP=1 make demo` `pkg/pipeline.Decide` `config/` `docs/x/y` `make it`\n"), tree),
		"docs/x/y does not exist", "no target it")
}

var (
	logRow  = regexp.MustCompile("(?m)^\\| (info|warn|error) \\| `([^`]+)` \\|")
	logCall = regexp.MustCompile(`[lL]og(?:\.With\([^)]*\))?\.(?:(Info|Warn|Error)|Log)\((?:context\.Background\(\), level, )?"([^"]+)"`)
)

// logProblems compares the table of log messages with the calls that make them.
func logProblems(text string, sources []string) []string {
	said, made := map[string]string{}, map[string]string{}
	for _, m := range logRow.FindAllStringSubmatch(text, -1) {
		said[m[2]] = m[1]
	}
	var problems []string
	for _, source := range sources {
		for _, m := range logCall.FindAllStringSubmatch(source, -1) {
			made[m[2]] = strings.ToLower(m[1]) // "" for a level that is computed
			if level, ok := said[m[2]]; !ok || made[m[2]] != "" && level != made[m[2]] {
				problems = append(problems, fmt.Sprintf("the message %q has level %q, the table says %q", m[2], made[m[2]], level))
			}
		}
	}
	for message := range said {
		if _, ok := made[message]; !ok {
			problems = append(problems, fmt.Sprintf("nothing logs %q", message))
		}
	}
	return problems
}

func TestLogMessagesAreDocumented(t *testing.T) {
	root, docs, _ := repository(t)
	i := slices.IndexFunc(docs, func(d doctest.Document) bool { return d.Path == "docs/OPERATIONS.md" })
	files, err := filepath.Glob(filepath.Join(root, "pkg", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, string(text))
	}
	report(t, logProblems(docs[i].Text, sources))
	wantProblems(t, logProblems("| info | `one` | x |\n| warn | `two` | x |\n", []string{`s.log.Info("one", "a", 1)`, `log.Error("two")`, `r.log.Warn("three")`}),
		`"two" has level "error"`, `"three"`)
	wantProblems(t, logProblems("| info | `one` | x |\n", nil), `nothing logs "one"`)
}
