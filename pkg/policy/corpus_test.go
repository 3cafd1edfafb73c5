package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

var update = flag.Bool("update", false, "rewrite the want sections of testdata/*.txtar; read the diff before you commit it")

// TestCorpus compiles the files of each testdata/*.txtar and compares what
// comes out with its section want: the faults if there are any, then the rules
// of the set, then the answers to the section ask.
//
// The section options has words: merge, strict, empty. Each line of ask is a
// domain and then entries as key=value; its answer is the ID of each rule, its
// label when that differs, or none.
func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := runCase(t, a)
			if *update {
				setSection(a, "want", got)
				if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(section(a, "want"), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		})
	}
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func setSection(a *txtar.Archive, name, data string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(data)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(data)})
}

func runCase(t *testing.T, a *txtar.Archive) string {
	t.Helper()
	var files []*policy.File
	for _, f := range a.Files {
		if strings.HasSuffix(f.Name, ".yaml") {
			files = append(files, policy.Parse(f.Name, f.Data))
		}
	}
	var opts policy.Options
	for _, w := range strings.Fields(section(a, "options")) {
		switch w {
		case "merge":
			opts.MergeDomains = true
		case "strict":
			opts.Strict = true
		case "empty":
			opts.AllowEmpty = true
		default:
			t.Fatalf("unknown option %q", w)
		}
	}
	set, faults := policy.Compile(files, opts)
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintf(&b, "[%s] %v\n", f.Code, f)
	}
	if set == nil {
		return b.String()
	}
	b.WriteString(dump(set))
	for _, line := range strings.Split(strings.TrimSpace(section(a, "ask")), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		fmt.Fprintf(&b, "%s -> %s\n", line, ask(set, words[0], entries(words[1:])))
	}
	return b.String()
}

func entries(words []string) []limit.Entry {
	var out []limit.Entry
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		out = append(out, limit.Entry{Key: k, Value: v})
	}
	return out
}

func ask(set *policy.Set, domain string, e []limit.Entry) string {
	d := set.Domain(domain)
	if d == nil {
		return "no domain"
	}
	var all []string
	for _, r := range d.Match(e) {
		text := r.ID
		if l := r.Label(e); l != r.ID {
			text += " label " + l
		}
		all = append(all, text)
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// dump returns a set as text, one line a rule.
func dump(set *policy.Set) string {
	var b strings.Builder
	if set.Version() != 0 {
		fmt.Fprintf(&b, "version %d\n", set.Version())
	}
	for _, r := range set.Rules() {
		fmt.Fprintf(&b, "%s:%d: %s", r.File, r.Line, r.Domain)
		for _, l := range r.Path {
			fmt.Fprintf(&b, " > %q", l.Key)
			if l.Value != "" {
				fmt.Fprintf(&b, "=%q", l.Value)
			}
			for _, w := range []struct {
				on   bool
				name string
			}{{l.Pattern, "pattern"}, {l.Shared, "shared"}, {l.ValueToMetric, "value_to_metric"}} {
				if w.on {
					b.WriteString(" " + w.name)
				}
			}
		}
		fmt.Fprintf(&b, ": %s", r.ID)
		if r.Name != "" {
			fmt.Fprintf(&b, " name %q", r.Name)
		}
		if len(r.Replaces) > 0 {
			fmt.Fprintf(&b, " replaces %q", r.Replaces)
		}
		for _, w := range []struct {
			on   bool
			name string
		}{{r.Unlimited, "unlimited"}, {r.Shadow, "shadow"}, {r.Quota, "quota"}, {r.DetailedMetric, "detailed_metric"}} {
			if w.on {
				b.WriteString(" " + w.name)
			}
		}
		if r.Metadata != nil {
			fmt.Fprintf(&b, " metadata %v", r.Metadata)
		}
		if p := r.Params; p != nil {
			fmt.Fprintf(&b, " %s %d per %d × %s overdraw %s, on failure %s", p.Algorithm, r.RequestsPerUnit, r.Multiplier, r.Unit, r.Overdraw, r.OnStoreFailure)
			fmt.Fprintf(&b, " {version %d limit %d window %d rate %d/%d capacity %d cap %d}", p.Version, p.Limit, p.Window, p.Num, p.Den, p.Capacity, p.OverdrawCap)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
