package policy_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/weir-rl/weir/pkg/policy"
)

// faultCase is one txtar below testdata/faults: a set of files that has faults.
//
// Its sections are the files, *.yaml; options, with the words of Options;
// repeat, lines of FILE N TEXT that append the text N times, for what is too
// large to be written out; and want, with every fault in its order. A file
// that options calls missing=NAME is read from there, where nothing is.
type faultCase struct {
	name    string
	archive *txtar.Archive
	files   []*policy.File
	opts    policy.Options
}

func faultCases(t *testing.T, folder string) []faultCase {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "faults", folder, "*.txtar"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus in %s: %v", folder, err)
	}
	cases := make([]faultCase, len(names))
	for i, name := range names {
		a, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		cases[i] = faultCase{name: name, archive: a}
		cases[i].read(t)
	}
	return cases
}

func (c *faultCase) read(t *testing.T) {
	t.Helper()
	tail := map[string]string{}
	for _, line := range strings.Split(section(c.archive, "repeat"), "\n") {
		if line == "" {
			continue
		}
		words := strings.SplitN(line, " ", 3)
		n, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		tail[words[0]] += strings.Repeat(strings.ReplaceAll(words[2], `\n`, "\n"), n)
	}
	for _, f := range c.archive.Files {
		if strings.HasSuffix(f.Name, ".yaml") {
			c.files = append(c.files, policy.Parse(f.Name, append(f.Data, tail[f.Name]...)))
		}
	}
	for _, w := range strings.Fields(section(c.archive, "options")) {
		missing, isMissing := strings.CutPrefix(w, "missing=")
		switch {
		case isMissing:
			c.files = append(c.files, policy.LoadFile(missing))
		case w == "merge":
			c.opts.MergeDomains = true
		default:
			t.Fatalf("%s: unknown option %q", c.name, w)
		}
	}
}

// maxListed is the most faults that a want section lists; of more it has the
// first ones and the last.
const maxListed = 20

// list returns faults as text, each with all that it says.
func list(faults policy.Faults) string {
	var b strings.Builder
	for i, f := range faults {
		if len(faults) > maxListed && i >= 2 && i < len(faults)-1 {
			if i == 2 {
				fmt.Fprintf(&b, "… %d more\n", len(faults)-3)
			}
			continue
		}
		fmt.Fprintf(&b, "[%s] %v\n", f.Code, f)
		if f.Value != "" {
			fmt.Fprintf(&b, "  value %q\n", f.Value)
		}
	}
	return b.String()
}

// check compares the faults with the section want, and holds each to what
// every fault has: a known code, a mend, a place, and its turn.
func (c *faultCase) check(t *testing.T) policy.Faults {
	t.Helper()
	set, faults := policy.Compile(c.files, c.opts)
	if (set == nil) != (faults.Err() != nil) {
		t.Errorf("%s: there is a set: %t, with %v", c.name, set != nil, faults.Err())
	}
	turn := func(f policy.Fault) int {
		return slices.IndexFunc(c.files, func(x *policy.File) bool { return x.Name == f.File })
	}
	for i, f := range faults {
		if !slices.Contains(policy.Codes(), f.Code) || f.Message == "" || f.Mend == "" {
			t.Errorf("%s: a fault lacks a known code, a message or a mend: %+v", c.name, f)
		}
		if whole := f.Code == policy.CodeUnreadable || f.Code == policy.CodeEmptySet; !whole && (f.Line < 1 || f.Column < 1 || turn(f) < 0) {
			t.Errorf("%s: a fault has no place: %+v", c.name, f)
		}
		if i > 0 && f.Code != policy.CodeMoreFaults {
			b := faults[i-1]
			if cmp.Or(cmp.Compare(turn(b), turn(f)), cmp.Compare(b.Line, f.Line), cmp.Compare(b.Column, f.Column)) > 0 {
				t.Errorf("%s: %v\ncomes after %v", c.name, f, b)
			}
		}
	}
	got := list(faults)
	if *update {
		setSection(c.archive, "want", got)
		if err := os.WriteFile(c.name, txtar.Format(c.archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(section(c.archive, "want"), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", c.name, diff)
	}
	return faults
}

// TestEveryCodeAlone: each code has a file, CODE.txtar or CODE.which.txtar,
// that raises this code and no other, once.
func TestEveryCodeAlone(t *testing.T) {
	raised := map[policy.Code]bool{}
	for _, c := range faultCases(t, "alone") {
		name, _, _ := strings.Cut(filepath.Base(c.name), ".")
		code := policy.Code(name)
		faults := c.check(t)
		if code == policy.CodeMoreFaults && len(faults) > 1 {
			faults = faults[len(faults)-1:] // It is what ends a list of others.
		}
		if len(faults) != 1 || faults[0].Code != code {
			t.Errorf("%s: want one %s and nothing else, got\n%s", c.name, code, list(faults))
		}
		raised[code] = true
	}
	for _, code := range policy.Codes() {
		if !raised[code] {
			t.Errorf("testdata/faults/alone has no file that raises %s", code)
		}
	}
}

// TestSeveralFaults: files with many faults report all of them, in order.
func TestSeveralFaults(t *testing.T) {
	cases := faultCases(t, "several")
	if len(cases) < 10 {
		t.Errorf("only %d files have several faults", len(cases))
	}
	for _, c := range cases {
		codes := map[policy.Code]bool{}
		for _, f := range c.check(t) {
			codes[f.Code] = true
		}
		if len(codes) < 2 {
			t.Errorf("%s has faults of %d codes", c.name, len(codes))
		}
	}
}
