package policy_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// failer is what mustCompile needs of a test, a benchmark or a rapid check.
type failer interface {
	Helper()
	Fatal(args ...any)
}

func mustCompile(t failer, opts policy.Options, files ...string) *policy.Set {
	t.Helper()
	var parsed []*policy.File
	for i, f := range files {
		parsed = append(parsed, policy.Parse(fmt.Sprintf("f%d.yaml", i), []byte(f)))
	}
	set, faults := policy.Compile(parsed, opts)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	return set
}

// slowLevel is one level of the second, obvious implementation of Match: a
// list of descriptors, gone through three times.
type slowLevel []slowNode

type slowNode struct {
	key, value string
	limit      bool
	below      slowLevel
}

// slowMatch returns the path of the descriptor that applies, "" for none.
func slowMatch(level slowLevel, entries []limit.Entry, path string) string {
	if len(entries) == 0 {
		return ""
	}
	e := entries[0]
	isPattern := func(n slowNode) bool { return strings.Contains(n.key+n.value, "*") }
	matches := func(text, s string) bool {
		parts := strings.Split(text, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(s)
	}
	for _, step := range []func(slowNode) bool{
		func(n slowNode) bool { return n.value != "" && n.key == e.Key && n.value == e.Value },
		func(n slowNode) bool {
			return isPattern(n) && matches(n.key, e.Key) && (n.value == "" || matches(n.value, e.Value))
		},
		func(n slowNode) bool { return n.value == "" && n.key == e.Key },
	} {
		for _, n := range level {
			if !step(n) {
				continue
			}
			path += fmt.Sprintf("/%q=%q", n.key, n.value)
			if len(entries) > 1 {
				return slowMatch(n.below, entries[1:], path)
			}
			if !n.limit {
				return ""
			}
			return path
		}
	}
	return ""
}

var texts = []string{"a", "b", "ab", "a*", "*a", "*", "a*b", "a*b*c", "**", "_", "a_b", "k", "k_", "k_v", "v", "é"}

func drawLevel(t *rapid.T, depth int) slowLevel {
	var l slowLevel
	seen := map[[2]string]bool{}
	for range rapid.IntRange(0, 5).Draw(t, "nodes") {
		n := slowNode{key: rapid.SampledFrom(texts).Draw(t, "key"), value: rapid.SampledFrom(append(texts, "")).Draw(t, "value")}
		if seen[[2]string{n.key, n.value}] {
			continue
		}
		seen[[2]string{n.key, n.value}] = true
		n.limit = rapid.Bool().Draw(t, "limit")
		if depth < 3 {
			n.below = drawLevel(t, depth+1)
		}
		l = append(l, n)
	}
	return l
}

// drawEntries follows the tree more often than not, filling its stars in.
func drawEntries(t *rapid.T, level slowLevel) []limit.Entry {
	fill := func(s string) string {
		return strings.ReplaceAll(s, "*", rapid.SampledFrom([]string{"", "*", "x", "ab", "\n\xff"}).Draw(t, "star"))
	}
	entries := make([]limit.Entry, rapid.IntRange(0, 3).Draw(t, "entries"))
	for i := range entries {
		e := limit.Entry{Key: rapid.SampledFrom(texts).Draw(t, "key"), Value: rapid.SampledFrom(append(texts, "")).Draw(t, "value")}
		if len(level) > 0 && rapid.IntRange(0, 3).Draw(t, "follow") > 0 {
			n := level[rapid.IntRange(0, len(level)-1).Draw(t, "node")]
			e.Key = fill(n.key)
			if n.value != "" {
				e.Value = fill(n.value)
			}
			level = n.below
		}
		entries[i] = e
	}
	return entries
}

func (l slowLevel) yaml(indent string) string {
	if len(l) == 0 {
		return indent + "[]\n"
	}
	var b strings.Builder
	for _, n := range l {
		fmt.Fprintf(&b, "%s- key: %q\n%s  value: %q\n", indent, n.key, indent, n.value)
		if n.limit {
			fmt.Fprintf(&b, "%s  rate_limit: {unlimited: true}\n", indent)
		}
		fmt.Fprintf(&b, "%s  descriptors:\n%s", indent, n.below.yaml(indent+"    "))
	}
	return b.String()
}

// rapidShare is by how much rapid cuts its runs with -short.
func rapidShare() int {
	if testing.Short() {
		return 5
	}
	return 1
}

// TestMatchAsSlow holds Match to the second implementation.
func TestMatchAsSlow(t *testing.T) {
	hits := 0
	rapid.Check(t, func(t *rapid.T) {
		level := drawLevel(t, 0)
		set := mustCompile(t, policy.Options{}, "domain: d\ndescriptors:\n"+level.yaml("  "))
		for range 20 {
			entries := drawEntries(t, level)
			got := ""
			for _, r := range set.Domain("d").Match(entries) {
				hits++
				for _, l := range r.Path {
					got += fmt.Sprintf("/%q=%q", l.Key, l.Value)
				}
			}
			if want := slowMatch(level, entries, ""); got != want {
				t.Fatalf("Match(%q) = %s, want %s, in\n%s", entries, got, want, level.yaml(""))
			}
		}
	})
	if hits < 50/rapidShare() { // About 280 are met.
		t.Errorf("only %d random requests met a rule: the generator is worthless", hits)
	}
}

const matchPolicy = `
domain: d
descriptors:
  - key: exact
    value: v
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: pattern
    value: a*b*c
    share_threshold: true
    descriptors:
      - key: bare
        rate_limits:
          - {name: a, unit: day, requests_per_unit: 1}
          - {name: b, unit: hour, requests_per_unit: 1}
`

func TestMatchAllocatesNothing(t *testing.T) {
	d := mustCompile(t, policy.Options{}, matchPolicy).Domain("d")
	for _, e := range [][]limit.Entry{
		nil,
		{{Key: "exact", Value: "v"}},
		{{Key: "exact", Value: "w"}},
		{{Key: "pattern", Value: "axbxc"}, {Key: "bare", Value: "anything"}},
		{{Key: "pattern", Value: "axbxc"}, {Key: "other", Value: "anything"}},
	} {
		var label string
		if n := testing.AllocsPerRun(100, func() {
			for _, r := range d.Match(e) {
				label = r.Label(e)
			}
		}); n != 0 {
			t.Errorf("Match and Label of %v (label %q) allocate %v times", e, label, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	d := mustCompile(b, policy.Options{}, matchPolicy).Domain("d")
	for name, e := range map[string][]limit.Entry{
		"exact":   {{Key: "exact", Value: "v"}},
		"pattern": {{Key: "pattern", Value: "axbxc"}, {Key: "bare", Value: "anything"}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.Match(e)
			}
		})
	}
}

// TestIDsAreUnique: within a domain no two rules have one ID or one label.
func TestIDsAreUnique(t *testing.T) {
	set := mustCompile(t, policy.Options{}, `
domain: d
descriptors:
  - {key: k_v, rate_limit: {unlimited: true}}
  - {key: k, value: v, rate_limit: {unlimited: true}}
  - {key: k_v#2, rate_limit: {unlimited: true}}
  - {key: a, rate_limit: {unlimited: true, name: same}}
  - {key: b, rate_limit: {unlimited: true, name: same}}
  - {key: c, rate_limit: {unlimited: true, name: own}}
  - {key: e, rate_limit: {unlimited: true, name: a}}
  - {key: l, rate_limits: [{unlimited: true, name: first}, {unlimited: true, name: same}, {unlimited: true, name: "2"}]}
  - {key: l, value: x, rate_limits: [{unlimited: true, name: first}]}
  - {key: l_x, rate_limits: [{unlimited: true, name: first}]}
`)
	var got []string
	for _, r := range set.Rules() {
		got = append(got, r.ID)
	}
	want := "k_v k_v#2 k_v#2#2 a b own e l#first l#same 2 l_x#first l_x#first#2"
	if strings.Join(got, " ") != want {
		t.Errorf("IDs = %s, want %s", strings.Join(got, " "), want)
	}
}
