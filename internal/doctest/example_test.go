package doctest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/doctest"
)

func TestGoFencesAreExamples(t *testing.T) {
	root, docs, _ := repository(t)
	for _, d := range docs {
		for _, f := range d.Fences() {
			if len(f.Info) == 3 && f.Info[0] == "go" {
				if err := isExample(root, f); err != nil {
					t.Errorf("%s:%d: %v", f.Path, f.Line, err)
				}
			}
		}
	}
}

// isExample says whether the fence's lines stand in the Example that it names, whatever their indentation.
func isExample(root string, f doctest.Fence) error {
	dir, name := f.Info[1], f.Info[2]
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			return err
		}
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Name.Name != name || !strings.HasPrefix(name, "Example") {
				continue
			}
			body := text[set.Position(fn.Body.Pos()).Offset:set.Position(fn.Body.End()).Offset]
			if !strings.Contains(unindented(string(body)), unindented(f.Body)) {
				return fmt.Errorf("the lines are not in %s of %s", name, dir)
			}
			return nil
		}
	}
	return fmt.Errorf("%s has no Example named %s", dir, name)
}

func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

func TestOtherGoIsFound(t *testing.T) {
	root, _, _ := repository(t)
	fence := func(info, body string) doctest.Fence {
		return doctest.Fence{Info: strings.Fields("go " + info), Body: body}
	}
	if err := isExample(root, fence("pkg/policy Example", "_, x := 1\n")); err == nil {
		t.Error("other lines than the example's were taken")
	}
	if err := isExample(root, fence("pkg/policy ExampleNothing", "")); err == nil {
		t.Error("an example that does not exist was taken")
	}
	if err := isExample(root, fence("pkg/policy Example", "for _, tenant := range []string{\"atlas\", \"birch\"} {\n  rule :=")); err == nil {
		t.Error("a part of a line was taken")
	}
	if err := isExample(root, fence("pkg/policy Example", "if err := faults.Err(); err != nil {\n    fmt.Println(err)\n")); err != nil {
		t.Errorf("lines of the example: %v", err)
	}
}
