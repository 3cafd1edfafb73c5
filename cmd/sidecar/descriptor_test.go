package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

func TestParseDescriptor(t *testing.T) {
	for text, want := range map[string][]limit.Entry{
		`k=v`:             {{Key: "k", Value: "v"}},
		`k=v,k2=v2`:       {{Key: "k", Value: "v"}, {Key: "k2", Value: "v2"}},
		`k=`:              {{Key: "k"}},
		`=`:               {{}},
		`q=a=b==`:         {{Key: "q", Value: "a=b=="}},
		`a\=b=c`:          {{Key: "a=b", Value: "c"}},
		`k=a\,b,l=\\`:     {{Key: "k", Value: "a,b"}, {Key: "l", Value: `\`}},
		`k=\xff\x00\x2C`:  {{Key: "k", Value: "\xff\x00,"}},
		`k= spaced , l=v`: {{Key: "k", Value: " spaced "}, {Key: " l", Value: "v"}},
	} {
		got, err := parseDescriptor(text)
		if err != nil {
			t.Errorf("parseDescriptor(%q): %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("parseDescriptor(%q): %s", text, diff)
		}
	}
	for _, text := range []string{``, `k`, `k=v,`, `k=v,l`, `k=\`, `k=\x`, `k=\xf`, `k=\xgg`, `k=\n`} {
		if got, err := parseDescriptor(text); err == nil {
			t.Errorf("parseDescriptor(%q) = %q, want an error", text, got)
		}
	}
}

// FuzzParseDescriptor holds that every descriptor can be written: escaped byte
// by byte, it parses back to itself.
func FuzzParseDescriptor(f *testing.F) {
	f.Add("k", "v", "k2", `a=b,c\`)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		want := []limit.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}}
		escape := func(s string) string {
			var b strings.Builder
			for i := range len(s) {
				fmt.Fprintf(&b, `\x%02x`, s[i])
			}
			return b.String()
		}
		text := escape(k1) + "=" + escape(v1) + "," + escape(k2) + "=" + escape(v2)
		got, err := parseDescriptor(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}
