package policy_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// corpusFiles returns every policy file of testdata.
func corpusFiles(t testing.TB) [][]byte {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(data).Files {
			if strings.HasSuffix(f.Name, ".yaml") {
				all = append(all, f.Data)
			}
		}
	}
	return all
}

// FuzzLoad: whatever a file holds, loading it ends without a panic; each fault
// says where, what and how to mend it; a set that loads can be read and asked.
func FuzzLoad(f *testing.F) {
	for _, data := range corpusFiles(f) {
		f.Add(data)
	}
	for _, c := range oddScalars {
		f.Add(scalarFile("value", c.yaml))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		files := []*policy.File{policy.Parse("f.yaml", data)}
		set, faults := policy.Compile(files, policy.Options{})
		if (set == nil) != (faults.Err() != nil) {
			t.Fatalf("set %v with error %v", set, faults.Err())
		}
		for _, x := range faults {
			if x.File == "" || x.Line < 1 || x.Column < 1 || x.Message == "" || x.Mend == "" || x.Code == "" {
				t.Errorf("fault without a place, a message or a mend: %+v", x)
			}
			if text := x.Error(); strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) || len(text) > 4000 {
				t.Errorf("fault that does not fit a log line: %q", text)
			}
		}
		if set == nil {
			return
		}
		dump(set)
		for _, r := range set.Rules() {
			e := make([]limit.Entry, len(r.Path))
			for i, l := range r.Path {
				e[i] = limit.Entry{Key: l.Key, Value: l.Value}
			}
			got := set.Domain(r.Domain).Match(e)
			if len(got) == 0 {
				t.Fatalf("%v has no rule, though %s has that path", e, r.ID)
			}
			for _, r := range got {
				if r.Label(e); !r.Unlimited {
					r.Key(e)
				}
			}
		}
	})
}
