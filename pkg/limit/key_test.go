package limit_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
)

var northstar = limit.Scheme{Secret: "s3cret", Namespace: "prod", TenantEntry: "tenant"}

// sample is the key of one check, as golden files and tables have it.
type sample struct {
	name    string
	scheme  limit.Scheme
	domain  string
	path    []limit.PathLevel
	rule    string
	entries []limit.Entry
}

func (s *sample) maker() *limit.KeyMaker { return s.scheme.Maker(s.domain, s.path, s.rule) }

func prefixed(s limit.Scheme) limit.Scheme { s.Prefix = "eu:"; return s }

// keys are one of each way to make a key (S19).
var keys = []sample{
	{"untagged", northstar, "api", []limit.PathLevel{{Key: "user"}}, "", []limit.Entry{{"user", "U-17"}}},
	{"tagged", northstar, "api", []limit.PathLevel{{Key: "tenant"}, {Key: "user"}}, "", []limit.Entry{{"tenant", "atlas"}, {"user", "U-17"}}},
	{"tagged, by value", northstar, "api", []limit.PathLevel{{Key: "tenant", Value: "atlas"}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"shared tenant", northstar, "api", []limit.PathLevel{{Key: "tenant", Value: "a*", Shared: true}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"shared level", northstar, "api", []limit.PathLevel{{Key: "tenant"}, {Key: "path", Value: "/v1/*", Shared: true}}, "", []limit.Entry{{"tenant", "atlas"}, {"path", "/v1/x"}}},
	{"named rule", northstar, "api", []limit.PathLevel{{Key: "user"}}, "burst", []limit.Entry{{"user", "U-17"}}},
	{"prefix", prefixed(northstar), "api", []limit.PathLevel{{Key: "tenant"}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"no secret", limit.Scheme{Namespace: "prod", TenantEntry: "tenant"}, "api", []limit.PathLevel{{Key: "tenant"}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"other namespace", limit.Scheme{Secret: "s3cret", Namespace: "test", TenantEntry: "tenant"}, "api", []limit.PathLevel{{Key: "tenant"}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"no tenant entry", limit.Scheme{Secret: "s3cret", Namespace: "prod"}, "api", []limit.PathLevel{{Key: "tenant"}}, "", []limit.Entry{{"tenant", "atlas"}}},
	{"invalid UTF-8", northstar, "api", []limit.PathLevel{{Key: "user"}}, "", []limit.Entry{{"user", "\xff\xfe\x00"}}},
	{"empty", limit.Scheme{}, "", nil, "", nil},
}

// Every way gives another key, and a pre-image that decodes to what it was made
// of.
func TestKeysDiffer(t *testing.T) {
	seen := map[[16]byte]string{}
	for _, k := range keys {
		got := k.maker().Key(k.entries)
		if other := seen[got.Digest]; other != "" {
			t.Errorf("%s and %s have one digest", k.name, other)
		}
		seen[got.Digest] = k.name
		p, err := limit.DecodePreImage(k.maker().AppendPreImage(nil, k.entries))
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		if p.Prefix != k.scheme.Prefix || p.Secret != k.scheme.Secret || p.Namespace != k.scheme.Namespace || p.Domain != k.domain || p.Name != k.rule {
			t.Errorf("%s: decoded as %+v", k.name, p)
		}
	}
}

// S19: the tag is of the check's own tenant, at a level without share_threshold,
// and of nothing else.
func TestTag(t *testing.T) {
	atlas := keys[1].maker().Key(keys[1].entries)
	for _, x := range []struct {
		name   string
		scheme limit.Scheme
		path   []limit.PathLevel
		entry  []limit.Entry
		tagged bool
		same   bool // as atlas's
	}{
		{"another rule of the tenant", northstar, []limit.PathLevel{{Key: "tenant"}}, []limit.Entry{{"tenant", "atlas"}}, true, true},
		{"at another level", northstar, []limit.PathLevel{{Key: "a"}, {Key: "tenant"}}, []limit.Entry{{"a", "b"}, {"tenant", "atlas"}}, true, true},
		{"a level with a value", northstar, []limit.PathLevel{{Key: "tenant", Value: "at*"}}, []limit.Entry{{"tenant", "atlas"}}, true, true},
		{"another tenant", northstar, []limit.PathLevel{{Key: "tenant"}}, []limit.Entry{{"tenant", "birch"}}, true, false},
		{"another namespace", limit.Scheme{Secret: "s3cret", Namespace: "test", TenantEntry: "tenant"}, []limit.PathLevel{{Key: "tenant"}}, []limit.Entry{{"tenant", "atlas"}}, true, false},
		{"another prefix", prefixed(northstar), []limit.PathLevel{{Key: "tenant"}}, []limit.Entry{{"tenant", "atlas"}}, true, true},
		{"another secret", limit.Scheme{Secret: "x", Namespace: "prod", TenantEntry: "tenant"}, []limit.PathLevel{{Key: "tenant"}}, []limit.Entry{{"tenant", "atlas"}}, true, false},
		{"the first of two", northstar, []limit.PathLevel{{Key: "tenant"}, {Key: "tenant"}}, []limit.Entry{{"tenant", "atlas"}, {"tenant", "birch"}}, true, true},
		{"the second, if the first is shared", northstar, []limit.PathLevel{{Key: "tenant", Value: "*", Shared: true}, {Key: "tenant"}}, []limit.Entry{{"tenant", "birch"}, {"tenant", "atlas"}}, true, true},
		{"shared", northstar, []limit.PathLevel{{Key: "tenant", Value: "*", Shared: true}}, []limit.Entry{{"tenant", "atlas"}}, false, false},
		{"no tenant on the path", northstar, []limit.PathLevel{{Key: "user"}}, []limit.Entry{{"user", "atlas"}}, false, false},
		{"no tenant entry set", limit.Scheme{}, []limit.PathLevel{{Key: ""}}, []limit.Entry{{"", "atlas"}}, false, false},
	} {
		k := x.scheme.Maker("api", x.path, "").Key(x.entry)
		if k.Tagged != x.tagged {
			t.Errorf("%s: tagged = %v, want %v", x.name, k.Tagged, x.tagged)
		}
		if same := k.Tag == atlas.Tag; same != x.same {
			t.Errorf("%s: the tag is atlas's: %v, want %v", x.name, same, x.same)
		}
		if !k.Tagged && k.Tag != ([8]byte{}) {
			t.Errorf("%s: untagged, with a tag of %x", x.name, k.Tag)
		}
		name := string(k.Append(nil, ""))
		if strings.Count(name, "{") != 1 || strings.Count(name, "}") != 1 {
			t.Errorf("%s: %s has not one hash tag", x.name, name)
		}
		if want := 7 + 22 + 2 + map[bool]int{true: 11}[k.Tagged]; len(name) != want {
			t.Errorf("%s: %s has %d bytes, want %d", x.name, name, len(name), want)
		}
	}
}

// S19: with share_threshold a level counts as its pattern.
func TestSharedLevel(t *testing.T) {
	m := northstar.Maker("api", []limit.PathLevel{{Key: "tenant"}, {Key: "path", Value: "/v1/*", Shared: true}}, "")
	k := func(tenant, path string) limit.Key { return m.Key([]limit.Entry{{"tenant", tenant}, {"path", path}}) }
	if k("atlas", "/v1/a") != k("atlas", "/v1/b") {
		t.Error("two values of one shared level have two keys")
	}
	if k("atlas", "/v1/a") == k("birch", "/v1/a") {
		t.Error("two tenants share a key")
	}
}

// A maker does not follow what its caller does with the path later.
func TestMakerKeepsItsOwnPath(t *testing.T) {
	path := []limit.PathLevel{{Key: "path", Value: "/v1/*", Shared: true}}
	m := northstar.Maker("api", path, "")
	entries := []limit.Entry{{"path", "/v1/a"}}
	before := m.Key(entries)
	path[0] = limit.PathLevel{Key: "other"}
	if m.Key(entries) != before {
		t.Error("the key changed with the caller's path")
	}
}

// fields are all that a key is made of, as one list.
type fields []string

// fixed is the number of fields before the path: prefix, secret, namespace,
// domain, rule name.
const fixed = 5

func (f fields) image() ([]byte, limit.Key) {
	s := limit.Scheme{Prefix: f[0], Secret: f[1], Namespace: f[2], TenantEntry: "tenant"}
	var path []limit.PathLevel
	var entries []limit.Entry
	for p := f[fixed:]; len(p) > 0; p = p[4:] {
		path = append(path, limit.PathLevel{Key: p[0], Value: p[1]})
		entries = append(entries, limit.Entry{Key: p[2], Value: p[3]})
	}
	m := s.Maker(f[3], path, f[4])
	return m.AppendPreImage(nil, entries), m.Key(entries)
}

// decoded is the list that the pre-image says it was made of.
func decoded(t *rapid.T, b []byte) fields {
	p, err := limit.DecodePreImage(b)
	if err != nil {
		t.Fatalf("DecodePreImage(%q): %v", b, err)
	}
	f := fields{p.Prefix, p.Secret, p.Namespace, p.Domain, p.Name}
	for i := range p.Path {
		f = append(f, p.Path[i].Key, p.Path[i].Value, p.Entries[i].Key, p.Entries[i].Value)
	}
	return f
}

// F29: keys of different checks never collide. A pre-image decodes back to what
// it was made of, so different fields have different pre-images; tested where
// it breaks: bytes that move over the border of two fields, and levels that
// come and go.
func TestPreImageIsInjective(t *testing.T) {
	piece := rapid.OneOf(
		rapid.StringN(0, 4, -1),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "tenant", "\x00", "\x01", "_", "a", "\xff\xff", strings.Repeat("x", 127), strings.Repeat("x", 128), strings.Repeat("y", 20_000)}),
	)
	rapid.Check(t, func(t *rapid.T) {
		levels := rapid.IntRange(0, 3).Draw(t, "levels")
		f := fields(rapid.SliceOfN(piece, fixed+4*levels, fixed+4*levels).Draw(t, "fields"))
		b, k := f.image()
		if diff := cmp.Diff(f, decoded(t, b)); diff != "" {
			t.Fatalf("decoded (-made of +got):\n%s", diff)
		}
		g := slices.Clone(f)
		i := rapid.IntRange(0, len(f)-2).Draw(t, "border")
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0: // bytes move on
			n := rapid.IntRange(0, len(f[i])).Draw(t, "bytes")
			g[i], g[i+1] = f[i][:len(f[i])-n], f[i][len(f[i])-n:]+f[i+1]
		case 1: // bytes move back
			n := rapid.IntRange(0, len(f[i+1])).Draw(t, "bytes")
			g[i], g[i+1] = f[i]+f[i+1][:n], f[i+1][n:]
		case 2: // a level swallows the next
			if levels > 0 {
				last := len(g) - 4
				g[last-1] += strings.Join(g[last:], "")
				g = g[:last]
			}
		case 3: // two fields change places
			j := rapid.IntRange(0, len(f)-1).Draw(t, "other")
			g[i], g[j] = f[j], f[i]
		}
		c, l := g.image()
		if same := slices.Equal(f, g); same != (string(b) == string(c)) || same != (k == l) && (same || k.Digest == l.Digest) {
			t.Fatalf("%q and %q: equal %v, one pre-image %v, one digest %v", f, g, same, string(b) == string(c), k.Digest == l.Digest)
		}
	})
}

// FuzzDecodePreImage: what is taken is what is made, byte by byte.
func FuzzDecodePreImage(f *testing.F) {
	for _, k := range keys {
		f.Add(k.maker().AppendPreImage(nil, k.entries))
	}
	f.Add([]byte{0, 0, 0, 0, 0, 0})                // no count of levels
	f.Add([]byte{0x80, 0x00, 0, 0, 0, 1, 0, 0})    // a length in more bytes than it needs
	f.Add([]byte{0, 0, 0, 0, 2, 0x80, 0x00, 0})    // likewise a count
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0})       // an entry without a level
	f.Add([]byte{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0}) // a level and its entry
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := limit.DecodePreImage(b)
		if err != nil {
			return
		}
		var path []limit.PathLevel
		for _, e := range p.Path {
			path = append(path, limit.PathLevel{Key: e.Key, Value: e.Value})
		}
		s := limit.Scheme{Prefix: p.Prefix, Secret: p.Secret, Namespace: p.Namespace}
		if got := s.Maker(p.Domain, path, p.Name).AppendPreImage(nil, p.Entries); string(got) != string(b) {
			t.Errorf("%q was decoded as %+v, which makes %q", b, p, got)
		}
	})
}
