package policy_test

import (
	"fmt"
	"strings"
	"testing"

	yamlv2 "go.yaml.in/yaml/v2"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/pkg/policy"
)

// oddScalars says what envoyproxy/ratelimit makes of scalars that are not what
// they seem, as a value (text) and as requests_per_unit (a number). The text ""
// is any value. refused means that it refuses the file.
var oddScalars = []struct {
	yaml         string
	text, number string
}{
	// Numbers keep their spelling as text; as numbers they are YAML 1.1.
	{`5`, "5", "5"},
	{`007`, "007", "7"},
	{`010`, "010", "8"},
	{`08`, refused, refused}, // no octal number, so one with a fraction
	{`0x10`, "0x10", "16"},
	{`0o17`, "0o17", "15"},
	{`0b101`, "0b101", "5"},
	{`1_000`, "1_000", "1000"},
	{`1__0_`, "1__0_", "10"},
	{`+5`, "+5", "5"},
	{`-1`, "-1", refused},
	{`0`, "0", "0"},
	{`4294967295`, "4294967295", "4294967295"},
	{`4294967296`, "4294967296", refused},
	{`9223372036854775807`, "9223372036854775807", refused},
	{`9223372036854775808`, refused, refused},
	{`99999999999999999999`, refused, refused},
	// Numbers with a fraction or an exponent are refused everywhere.
	{`1e3`, refused, refused},
	{`5.0`, refused, refused},
	{`.5`, refused, refused},
	{`1.`, refused, refused},
	{`.inf`, refused, refused},
	{`.NaN`, refused, refused},
	{`1_0.5`, refused, refused},
	{`1e999`, "1e999", refused}, // beyond a float, so text
	{`!!float 5`, refused, refused},
	// What looks like a number and is none is text.
	{`1:30`, "1:30", refused},
	{`1.2.3`, "1.2.3", refused},
	{`0x`, "0x", refused},
	{`10.0.0.0/8`, "10.0.0.0/8", refused},
	{`-`, refused, refused}, // an empty list element
	{`2020-01-01`, "2020-01-01", refused},
	{`2020-01-01T00:00:00Z`, "2020-01-01T00:00:00Z", refused},
	// Booleans keep their spelling as text.
	{`yes`, "yes", refused},
	{`No`, "No", refused},
	{`ON`, "ON", refused},
	{`off`, "off", refused},
	{`y`, "y", refused},
	{`true`, "true", refused},
	{`False`, "False", refused},
	{`tRue`, "tRue", refused},
	// Nulls are no text: any value, or the number 0.
	{`~`, "", "0"},
	{`null`, "", "0"},
	{`Null`, "", "0"},
	{`NULL`, "", "0"},
	{``, "", "0"},
	{`nULL`, "nULL", refused},
	// Quoted is text, whatever it looks like.
	{`"5"`, "5", refused},
	{`'007'`, "007", refused},
	{`"yes"`, "yes", refused},
	{`'~'`, "~", refused},
	{`"null"`, "null", refused},
	{`"1e3"`, "1e3", refused},
	{`""`, "", refused},
	{`"a\tb"`, "a\tb", refused},
	// Explicit tags.
	{`!!str 5`, "5", refused},
	{`!!str ~`, "~", refused},
	{`!!int "5"`, "5", "5"},
	{`!!int abc`, refused, refused},
	{`!!bool "yes"`, "yes", refused},
	{`!!null x`, refused, refused},
	{`!!binary aGk=`, "hi", refused},
	{`!!binary "%"`, refused, refused},
	{`!mine 5`, "5", refused},
	// Block scalars are text, with their line break.
	{"|\n      5\n", "5\n", refused},
	{"|-\n      5\n", "5", refused},
	{">-\n      a\n      b\n", "a b", refused},
	// An alias is what it stands for.
	{`&a 5`, "5", "5"},
	{`*five`, "5", "5"},
	{`*word`, "word", refused},
	// Not scalars at all.
	{`[]`, refused, refused},
	{`{}`, refused, refused},
}

const refused = "\x00refused"

// scalarFile puts a scalar where the given field is.
func scalarFile(field, scalar string) []byte {
	const anchors = "domain: d\ndescriptors:\n  - key: &word word\n    rate_limit: {unit: hour, requests_per_unit: &five 5}\n"
	switch field {
	case "key":
		return []byte(anchors + "  - key: " + scalar + "\n    rate_limit: {unit: hour, requests_per_unit: 1}\n")
	case "value":
		return []byte(anchors + "  - key: k\n    value: " + scalar + "\n    rate_limit: {unit: hour, requests_per_unit: 1}\n")
	case "name":
		return []byte(anchors + "  - key: k\n    rate_limit:\n     unit: hour\n     requests_per_unit: 1\n     name: " + scalar + "\n")
	}
	return []byte(anchors + "  - key: k\n    rate_limit:\n     unit: hour\n     requests_per_unit: " + scalar + "\n")
}

// weirScalar returns what we make of it.
func weirScalar(field string, data []byte) string {
	set, _ := policy.Compile([]*policy.File{policy.Parse("f.yaml", data)}, policy.Options{})
	if set == nil {
		return refused
	}
	r := set.Rules()[len(set.Rules())-1]
	switch field {
	case "key":
		return r.Path[0].Key
	case "value":
		return r.Path[0].Value
	case "name":
		return r.Name
	}
	return fmt.Sprint(r.RequestsPerUnit)
}

// peerScalar returns what the peer makes of it.
func peerScalar(field string, data []byte) string {
	if _, err := peerLoad(data); err != nil {
		return refused
	}
	var root peerRoot
	if err := yamlv2.Unmarshal(data, &root); err != nil {
		return refused
	}
	d := root.Descriptors[len(root.Descriptors)-1]
	switch field {
	case "key":
		return d.Key
	case "value":
		return d.Value
	case "name":
		return d.RateLimit.Name
	}
	return fmt.Sprint(d.RateLimit.RequestsPerUnit)
}

func TestOddScalars(t *testing.T) {
	for _, c := range oddScalars {
		want := map[string]string{"key": c.text, "value": c.text, "name": c.text, "requests_per_unit": c.number}
		if c.text == "" {
			want["key"] = refused // descriptor has empty key
		}
		if c.text == "word" {
			want["key"] = refused // the file has that key already
		}
		for field, want := range want {
			data := scalarFile(field, c.yaml)
			if got := peerScalar(field, data); got != want {
				t.Errorf("%s: %s: the table says %q of the peer, which reads %q", field, c.yaml, want, got)
			}
			if got := weirScalar(field, data); got != want {
				t.Errorf("%s: %s: read as %q, want %q", field, c.yaml, got, want)
			}
		}
	}
}

// TestScalarsAsPeer holds random scalars to yaml.v2.
func TestScalarsAsPeer(t *testing.T) {
	word := rapid.OneOf(
		rapid.StringMatching(`[-+]?(0[xob]?)?[0-9_]{0,12}(\.[0-9_]{0,3})?([eE][-+]?[0-9]{0,3})?`),
		rapid.StringMatching(`[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9:.]{1,8}Z?)?`),
		rapid.StringMatching(`[-+.~yYnNtTfFoO0-9a-zA-Z_]{1,6}`),
		rapid.SampledFrom(strings.Fields("~ null Null yes Yes yEs y n on ON oFF true .inf -.inf +.INF .nan .NaN << = 0b-1 0b+1 -0b1 0x_f")),
	)
	rapid.Check(t, func(t *rapid.T) {
		s := word.Draw(t, "scalar")
		switch rapid.IntRange(0, 9).Draw(t, "style") {
		case 0:
			s = "'" + s + "'"
		case 1:
			s = rapid.SampledFrom([]string{"!!str ", "!!int ", "!!bool ", "!!float ", "!!null ", "!!timestamp ", "!x "}).Draw(t, "tag") + s
		}
		for _, field := range []string{"key", "value", "name", "requests_per_unit"} {
			data := scalarFile(field, s)
			if want, got := peerScalar(field, data), weirScalar(field, data); got != want {
				t.Errorf("%s: %s: read as %q, the peer reads %q", field, s, got, want)
			}
		}
	})
}
