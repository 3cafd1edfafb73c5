package doctest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/pkg/policy"
)

const (
	fieldsBegin = "<!-- policy fields"
	laterBegin  = "<!-- later fields"
	fieldsEnd   = "<!-- end of fields -->"
)

var (
	fieldRow   = regexp.MustCompile("(?m)^\\| ([^|]*) \\| `([a-z_]+)` \\| (peer|Weir) \\| [^|]+ \\| [^|]+ \\| [^|]+ \\| [^|]+ \\|$")
	quotedName = regexp.MustCompile("`([a-z_]+)`")
)

// between returns what stands after the line that begins with one mark and before the next end.
func between(text, begin string) string {
	_, after, _ := strings.Cut(text, begin)
	_, after, _ = strings.Cut(after, "\n")
	inside, _, _ := strings.Cut(after, fieldsEnd)
	return inside
}

// fieldProblems compares the reference of the policy files' fields with those that the loader knows.
func fieldProblems(text string) []string {
	var problems []string
	compare := func(what string, documented, known []string) {
		for _, name := range known {
			if !slices.Contains(documented, name) {
				problems = append(problems, what+" "+name+" is not documented")
			}
		}
		for i, name := range documented {
			if !slices.Contains(known, name) {
				problems = append(problems, what+" "+name+" is documented, but the loader does not know it")
			}
			if slices.Contains(documented[:i], name) {
				problems = append(problems, what+" "+name+" is documented twice")
			}
		}
	}
	var documented, known []string
	for _, m := range fieldRow.FindAllStringSubmatch(between(text, fieldsBegin), -1) {
		documented = append(documented, strings.ReplaceAll(m[1], "`", "")+": "+m[2]+" of "+m[3])
	}
	for _, f := range policy.Fields() {
		whose := "peer"
		if f.Weir {
			whose = "Weir"
		}
		known = append(known, f.In+": "+f.Name+" of "+whose)
	}
	compare("the field in", documented, known)

	var later []string
	for _, m := range quotedName.FindAllStringSubmatch(between(text, laterBegin), -1) {
		later = append(later, m[1])
	}
	compare("the later field", later, policy.LaterFields())
	return problems
}

func TestPolicyFieldsAreDocumented(t *testing.T) {
	root, _, _ := repository(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "CONFIGURATION.md"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, fieldProblems(string(text)))

	for _, c := range []struct{ old, new, want string }{
		{"| `rate_limit` | `burst` | Weir |", "| `rate_limit` | `brust` | Weir |", "rate_limit: brust of Weir is documented, but"},
		{"| `rate_limit` | `burst` | Weir |", "| `rate_limit` | burst | Weir |", "rate_limit: burst of Weir is not documented"},
		{"| `rate_limit` | `burst` | Weir |", "| `defaults` | `burst` | Weir |", "defaults: burst of Weir is documented, but"},
		{"`negative_cache`", "`burst`", "the later field negative_cache is not documented"},
	} {
		bad := strings.Replace(string(text), c.old, c.new, 1)
		if got := strings.Join(fieldProblems(bad), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s instead of %s: problems %q, want one with %q", c.new, c.old, got, c.want)
		}
	}
}
