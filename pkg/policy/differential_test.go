package policy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/policy"
)

// weirLoad returns the rules of one file in the form of peerLoad.
func weirLoad(data []byte) ([]string, error) {
	set, faults := policy.Compile([]*policy.File{policy.Parse("f.yaml", data)}, policy.Options{})
	if err := faults.Err(); err != nil {
		return nil, err
	}
	var rules []string
	for _, r := range set.Rules() {
		var path []string
		var last policy.Level
		for _, l := range r.Path {
			text := l.Key
			if l.Value != "" {
				text += "_" + l.Value
			}
			path, last = append(path, text), l
		}
		unit := ""
		if !r.Unlimited {
			unit = strings.ToUpper(r.Unit.String())
		}
		meta := "none"
		if r.Metadata != nil {
			meta = fmt.Sprint(r.Metadata)
		}
		rules = append(rules, fmt.Sprintf("%s%s %d/%s unlimited=%t name=%q replaces=%q shadow=%t quota=%t detailed=%t value_to_metric=%t share=%t metadata=%s",
			r.Domain+".", strings.Join(path, "."), r.RequestsPerUnit, unit, r.Unlimited, r.Name, r.Replaces, r.Shadow, r.Quota, r.DetailedMetric, last.ValueToMetric, last.Shared, meta))
	}
	return rules, nil
}

// fileGen writes random policy files, mostly sensible ones, in flow style.
type fileGen struct {
	t       *rapid.T
	n       int
	anchors map[string][]string // by what they stand for
}

func (g *fileGen) one(words ...string) string { return rapid.SampledFrom(words).Draw(g.t, "word") }

// odds is true about once in n times; rapid draws small numbers more often.
func (g *fileGen) odds(n int) bool { return rapid.IntRange(1, n).Draw(g.t, "odds") == n/2+1 }

// rare returns strange text in place of a value now and then.
func (g *fileGen) rare(s string) string {
	if g.odds(150) {
		return g.one("~", "'x'", "1.5", "{}", "[]", "[a]", "[{}]", "{key: a}", "!!str 5", "!!int x", "yes", "-1", "Null")
	}
	return s
}

// anchored gives a value an anchor, or uses an earlier one in its place.
func (g *fileGen) anchored(kind, s string) string {
	switch {
	case g.odds(6):
		a := fmt.Sprintf("a%d", g.n)
		g.n++
		s = "&" + a + " " + s
		g.anchors[kind] = append(g.anchors[kind], a)
	case g.odds(12):
		return g.alias(kind, s)
	}
	return s
}

// alias returns an alias to something of that kind, rarely of another.
func (g *fileGen) alias(kind, otherwise string) string {
	if g.odds(30) {
		kind = g.one("descriptor", "limit", "text", "list", "metadata")
	}
	if names := g.anchors[kind]; len(names) > 0 {
		return "*" + g.one(names...)
	}
	return otherwise
}

func (g *fileGen) mapping(kind string, fields []string) string {
	if g.odds(6) {
		merge := "<<: " + g.alias(kind, "{}")
		if g.odds(4) {
			merge = "<<: [" + g.alias(kind, "{}") + " , {shadow_mode: true}]"
		}
		at := rapid.IntRange(0, len(fields)).Draw(g.t, "merge at")
		fields = append(fields[:at:at], append([]string{merge}, fields[at:]...)...)
	}
	if g.odds(50) {
		fields = append(fields, g.one("key: b", "value: c*", "unlimited: true", "rate_limit: {name: again}", "rate_limit: ~",
			"metadata: {b: [1, yes, {0x10: ~}]}", "replaces: [{name: r}]", "requests_per_unit: 9", "unit: hour", "domain: e", "Key: a", "5: a"))
	}
	return "{" + strings.Join(fields, ", ") + " }"
}

func (g *fileGen) descriptors(depth int) string {
	n := rapid.IntRange(0, 3).Draw(g.t, "descriptors")
	all := make([]string, n)
	for i := range all {
		all[i] = g.descriptor(depth)
	}
	return g.anchored("list", g.rare("["+strings.Join(all, ", ")+" ]"))
}

func (g *fileGen) descriptor(depth int) string {
	fields := []string{"key: " + g.anchored("text", g.rare(g.one("a", "b", "c", "d", "e", "f*", "a*", "g", "h", "k_v", "'k'", "007")))}
	if g.odds(2) {
		fields = append(fields, "value: "+g.anchored("text", g.rare(g.one("x", "y", "z", "x*", "*x*y", "v", "1_0", "~"))))
	}
	if g.odds(2) {
		fields = append(fields, "rate_limit: "+g.anchored("limit", g.rare(g.rateLimit())))
	}
	for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold"} {
		if g.odds(40) {
			fields = append(fields, flag+": "+g.rare(g.one("true", "false", "on", "no")))
		}
	}
	if g.odds(10) {
		fields = append(fields, "metadata: "+g.anchored("metadata", g.one("{}", "~", "{a: 1, b: {c: 1.5, yes: no}}", "{5: [x, ~, 2020-01-01]}", "{<<: {z: 1}, y: 0x10}")))
	}
	if depth < 2 && g.odds(3) {
		fields = append(fields, "descriptors: "+g.descriptors(depth+1))
	}
	return g.anchored("descriptor", g.mapping("descriptor", fields))
}

func (g *fileGen) rateLimit() string {
	var fields []string
	if g.odds(12) {
		fields = append(fields, "unlimited: "+g.rare(g.one("true", "false", "yes")))
		if g.odds(2) {
			fields = append(fields, "unit: "+g.one("foo", "''", "minute"))
		}
	} else {
		fields = append(fields, "unit: "+g.rare(g.one("second", "Minute", "HOUR", "day", "week", "month", "year", "second")))
	}
	if !g.odds(6) {
		fields = append(fields, "requests_per_unit: "+g.rare(g.one("0", "1", "1_000", "007", "0x10", "4294967295")))
	}
	if g.odds(5) {
		fields = append(fields, "name: "+g.rare(g.one("n", "m", "5")))
	}
	if g.odds(12) {
		fields = append(fields, "replaces: "+g.rare(g.one("[]", "~", "[{name: o}]", "[{name: n}, {name: o, key: x}]", "[{}]")))
	}
	return g.mapping("limit", fields)
}

// TestFilesAsPeer: what the peer loads, we load to the same effect; what it
// refuses, we refuse. The one difference is on purpose: a key k_v and a key k
// with the value v are two descriptors here.
func TestFilesAsPeer(t *testing.T) {
	loaded, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			g := &fileGen{t: t, anchors: map[string][]string{}}
			data := []byte(g.mapping("root", []string{"domain: " + g.rare("d"), "descriptors: " + g.descriptors(0)}))
			want, wantErr := peerLoad(data)
			got, err := weirLoad(data)
			switch {
			case errors.Is(wantErr, errPeerDuplicate):
			case (wantErr == nil) != (err == nil):
				t.Errorf("%s\nloads with %v, in the peer with %v", data, err, wantErr)
			case strings.Join(want, "\n") != strings.Join(got, "\n"):
				t.Errorf("%s\nreads as\n%s\nin the peer as\n%s", data, strings.Join(got, "\n"), strings.Join(want, "\n"))
			case err != nil:
				refused++
			case len(got) > 0:
				loaded++
			}
		}
	})
	if share := rapidShare(); loaded < 100/share || refused < 50/share {
		t.Errorf("of the random files only %d loaded and had a rule, and %d were refused: the generator is worthless", loaded, refused)
	}
	t.Logf("%d files with rules loaded, %d were refused", loaded, refused)
}
