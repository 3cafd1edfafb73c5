package authority

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

const scriptsGolden = "testdata/scripts.golden"

const scriptsHelp = `
A script changed. Sidecars of several releases run their own scripts on one
store at the same time, so say first whether the bytes that it stores changed,
or what it reads in them:
  - they did not: put its new line into %s;
  - they did: raise limit.Layout and LAYOUT in the script, read the old layout
    as well, and put the new line beside the reason into the change.
`

// TestScriptsStateTheirLayout compares each script with the line that its author
// wrote for it: file, SHA-1, layout.
func TestScriptsStateTheirLayout(t *testing.T) {
	files, err := filepath.Glob("scripts/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	var got strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // a file of this package
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s  %x  layout %d\n", filepath.Base(file), sha1.Sum(text), limit.Layout) //nolint:gosec // see the import
	}
	want, err := os.ReadFile(scriptsGolden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("scripts (-%s +now):\n%s"+scriptsHelp, scriptsGolden, diff, scriptsGolden)
	}
}

// TestScriptKnowsTheLayouts: the two programs mean the same numbers.
func TestScriptKnowsTheLayouts(t *testing.T) {
	m := regexp.MustCompile(`(?m)^local LAYOUT, MAX_LAYOUT, .* = (\d+), (\d+),`).FindStringSubmatch(debitScript)
	if m == nil {
		t.Fatal("no line of the script sets LAYOUT and MAX_LAYOUT")
	}
	last := 0
	for n := range 256 {
		if _, form := limit.DecodeState([]byte{'Z', byte(n), 0, 0, 0, 0, 0, 0}); form == limit.Newer {
			last = n
		}
	}
	if m[1] != strconv.Itoa(limit.Layout) || m[2] != strconv.Itoa(last) {
		t.Errorf("LAYOUT, MAX_LAYOUT = %s, %s, want %d, %d as in package limit", m[1], m[2], limit.Layout, last)
	}
}
