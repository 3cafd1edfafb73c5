package sidecar_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/weir-rl/weir/pkg/sidecar"
)

var update = flag.Bool("update", false, "rewrite docs/CONFIGURATION.md and config/sidecar.yaml from the table of settings")

const (
	docsFile   = "../../docs/CONFIGURATION.md"
	sampleFile = "../../config/sidecar.yaml"
	docsBegin  = "<!-- settings:"
	docsEnd    = "<!-- end -->"
)

// examples are the values of the sample that are not the defaults.
var examples = map[string]string{
	"rls.unix.path": "/run/weir/rls.sock",
	"policy.paths":  "[/etc/weir/policies]",
	"store.type":    "redis",
	"store.url":     "redis://127.0.0.1:6379/0",
}

func compareOrUpdate(t *testing.T, file string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s differs from the table of settings; run go test ./pkg/sidecar -update\n%s", file, cmp.Diff(string(got), string(want)))
}

func TestDocsMatchTheTable(t *testing.T) {
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	begin := bytes.Index(got, []byte(docsBegin))
	end := bytes.LastIndex(got, []byte(docsEnd))
	if begin < 0 || end < begin {
		t.Fatalf("%s has no markers", docsFile)
	}
	line := begin + bytes.IndexByte(got[begin:], '\n') + 1
	var want bytes.Buffer
	want.Write(got[:line])
	section := ""
	orDash := func(s string) string {
		if s == "" {
			return "–"
		}
		return s
	}
	for _, s := range sidecar.Table() {
		if head, _, _ := strings.Cut(s.Path, "."); head != section {
			section = head
			fmt.Fprintf(&want, "\n## `%s`\n\n| name | type | unit | default | variable | flag | reloadable | meaning |\n", section)
			want.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
		}
		def := ""
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | `%s` | `%s` | no | %s |\n",
			s.Path, s.Type, orDash(s.Unit), orDash(def), s.Env(), s.Flag(), s.Doc)
	}
	want.WriteString("\n")
	want.Write(got[end:])
	compareOrUpdate(t, docsFile, got, want.Bytes())
}

func TestSampleMatchesTheTable(t *testing.T) {
	got, err := os.ReadFile(sampleFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var want bytes.Buffer
	want.WriteString("# Every setting of a sidecar, with its default where it has one: sidecar serve --config sidecar.yaml\n" +
		"# docs/CONFIGURATION.md has the variables and flags that stand above this file.\n")
	var open []string
	for _, s := range sidecar.Table() {
		parts := strings.Split(s.Path, ".")
		sections, name := parts[:len(parts)-1], parts[len(parts)-1]
		for i, section := range sections {
			if i < len(open) && open[i] == section {
				continue
			}
			if i == 0 {
				want.WriteString("\n")
			}
			fmt.Fprintf(&want, "%s%s:\n", strings.Repeat("  ", i), section)
			open = append(open[:min(i, len(open))], section)
		}
		open = open[:len(sections)]
		indent := strings.Repeat("  ", len(sections))
		for _, line := range wrap(s.Doc, 100-len(indent)) {
			fmt.Fprintf(&want, "%s# %s\n", indent, line)
		}
		value, ok := examples[s.Path]
		if !ok {
			value = s.Default
		}
		if value == "" {
			value = `""`
		}
		fmt.Fprintf(&want, "%s%s: %s\n", indent, name, value)
	}
	compareOrUpdate(t, sampleFile, got, want.Bytes())

	if _, faults := sidecar.Load(sidecar.Inputs{File: sampleFile, Data: want.Bytes()}); len(faults) > 0 {
		t.Errorf("the sample has faults: %v", faults)
	}
	// Other tools read the file with an ordinary YAML parser: it must see the
	// same names.
	var tree map[string]any
	if err := yaml.UnmarshalStrict(want.Bytes(), &tree); err != nil {
		t.Fatal(err)
	}
	for _, s := range sidecar.Table() {
		var at any = tree
		for part := range strings.SplitSeq(s.Path, ".") {
			section, ok := at.(map[string]any)
			if _, has := section[part]; !ok || !has {
				t.Errorf("%s has no %s", sampleFile, s.Path)
				break
			}
			at = section[part]
		}
	}
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
