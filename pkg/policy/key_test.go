package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// identity is everything that must tell one key from another.
type identity struct {
	domain  string
	name    string
	entries []limit.Entry
}

func (i identity) String() string { return fmt.Sprintf("%q %q %q", i.domain, i.name, i.entries) }

// file is a policy of one rule whose path has these keys and values.
func (i identity) file() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %q\n", i.domain)
	indent := ""
	for n, e := range i.entries {
		fmt.Fprintf(&b, "%sdescriptors:\n%s- key: %q\n%s  value: %q\n", indent, indent, e.Key, indent, e.Value)
		indent += "  "
		if n == len(i.entries)-1 {
			fmt.Fprintf(&b, "%srate_limit: {unit: day, requests_per_unit: 1, name: %q}\n", indent, i.name)
		}
	}
	return b.String()
}

func (i identity) key(t *rapid.T) limit.Key {
	d := mustCompile(t, policy.Options{Scheme: limit.Scheme{Namespace: "n"}}, i.file()).Domain(i.domain)
	rules := d.Match(i.entries)
	if len(rules) != 1 {
		t.Fatalf("%v matches %d rules of\n%s", i, len(rules), i.file())
	}
	return rules[0].Key(i.entries)
}

// shift moves the border between two neighbouring fields of an identity by one
// byte, which is what a key that joins its fields does not see.
func (i identity) shift(t *rapid.T) identity {
	out := identity{domain: i.domain, name: i.name, entries: append([]limit.Entry(nil), i.entries...)}
	fields := []*string{&out.domain, &out.name}
	for n := range out.entries {
		fields = append(fields, &out.entries[n].Key, &out.entries[n].Value)
	}
	n := rapid.IntRange(0, len(fields)-2).Draw(t, "border")
	a, b := fields[n], fields[n+1]
	if rapid.Bool().Draw(t, "left") && len(*b) > 0 {
		*a, *b = *a+(*b)[:1], (*b)[1:]
	} else if len(*a) > 0 {
		last := len(*a) - 1
		*a, *b = (*a)[:last], (*a)[last:]+*b
	}
	return out
}

// TestKeysTellIdentitiesApart: two requests share a key only when domain,
// rule and all entries are the same (failure F29).
func TestKeysTellIdentitiesApart(t *testing.T) {
	text := rapid.StringMatching(`[ab_.|:/]{1,4}`)
	rapid.Check(t, func(t *rapid.T) {
		one := identity{domain: text.Draw(t, "domain"), name: text.Draw(t, "name")}
		for range rapid.IntRange(1, 3).Draw(t, "levels") {
			one.entries = append(one.entries, limit.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
		}
		other := one.shift(t)
		for _, e := range other.entries {
			if e.Key == "" || e.Value == "" {
				t.Skip("no policy has an empty key, and an empty value is any")
			}
		}
		if other.domain == "" {
			t.Skip("no policy has an empty domain")
		}
		same := one.String() == other.String()
		if a, b := one.key(t), other.key(t); (a == b) != same {
			t.Errorf("%v and %v: equal keys: %t", one, other, a == b)
		}
	})
}

// TestKeysOfOneRule: under one bare key each value has its own key, and the
// name of the rule and the number of levels count too.
func TestKeysOfOneRule(t *testing.T) {
	set := mustCompile(t, policy.Options{}, `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - key: k
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: s
    value: a*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: p
    value: a*
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: l
    rate_limits: [{name: a, unit: day, requests_per_unit: 1}, {name: b, unit: day, requests_per_unit: 1}]
`)
	key := func(words ...string) limit.Key {
		e := entries(words)
		r := set.Domain("d").Match(e)
		if len(r) == 0 {
			t.Fatalf("%v matches nothing", words)
		}
		return r[0].Key(e)
	}
	seen := map[limit.Key]string{}
	for _, words := range []string{"k=a", "k=b", "k=", "k=a k=b", "k=ab k=", "k= k=ab", "s=ab", "p=ab", "p=ac", "p=a*"} {
		k := key(strings.Fields(words)...)
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q share a key", words, other)
		}
		seen[k] = words
	}
	if key("s=ab") != key("s=ac") || key("s=ab") != key("s=a*") {
		t.Error("values under share_threshold have keys of their own")
	}
	l := entries([]string{"l=a"})
	if r := set.Domain("d").Match(l); len(r) != 2 || r[0].Key(l) == r[1].Key(l) {
		t.Error("two limits of one descriptor share a key")
	}
}

// TestKeysOfTenants: the scheme's tenant entry tags the keys of the rules that
// have it on their path, but not under share_threshold, where it says nothing.
func TestKeysOfTenants(t *testing.T) {
	set := mustCompile(t, policy.Options{Scheme: limit.Scheme{TenantEntry: "tenant"}}, `
domain: d
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: tenant
    value: trial-*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 1}
`)
	key := func(words ...string) limit.Key {
		e := entries(words)
		return set.Domain("d").Match(e)[0].Key(e)
	}
	atlas, user := key("tenant=atlas"), key("tenant=atlas", "user=U-17")
	if !atlas.Tagged || atlas.Tag != user.Tag || atlas.Tag == key("tenant=birch").Tag {
		t.Error("the keys of one tenant do not have its own tag")
	}
	if key("user=U-17").Tagged || key("tenant=trial-1").Tagged {
		t.Error("a key without a tenant of its own is tagged")
	}
}
