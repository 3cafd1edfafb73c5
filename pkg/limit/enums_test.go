package limit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// names are the texts of the values from 0 on, up to the first without a name.
func names[T interface {
	~uint8
	fmt.Stringer
}]() []string {
	var all []string
	for v := T(0); !strings.Contains(v.String(), "("); v++ {
		all = append(all, v.String())
	}
	return all
}

// The closed enums. Whoever adds a value finds this test broken, and what else
// has to know of it: metrics and their documentation, dashboards and alerts, the
// response metadata, and every switch over the enum.
func TestEnumsAreClosed(t *testing.T) {
	for _, x := range []struct {
		name string
		got  []string
		want string
	}{
		{"Source", names[limit.Source](), "none authority negcache lease fallback local"},
		{
			"Cause", names[limit.Cause](),
			" allowed limit too_large zero_limit concurrency unavailable overload share_too_small malformed no_rule no_policy" +
				" unlimited replaced exempt shadow peek refund allowed_by_mode",
		},
		{
			"Class", names[limit.Class](),
			"none refused timeout late overloaded expired wrong_slot moved read_only loading out_of_memory auth bad_reply script" +
				" topology layout stale connection busy",
		},
		{"Mode", names[limit.Mode](), "local closed open exempt"},
		{"Overdraw", names[limit.Overdraw](), "auto on off"},
		{"Kind", names[limit.Kind](), "refund enforced quota shadow"},
		{"Outcome", names[limit.Outcome](), "undecided allow deny not_evaluated"},
		{"Form", names[limit.Form](), "known newer foreign"},
	} {
		if diff := cmp.Diff(strings.Split(x.want, " "), x.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.name, diff)
		}
	}
}

// The lists from which metrics are made before their first use are complete.
func TestEnumLists(t *testing.T) {
	var sources, causes, classes []string
	for _, v := range limit.Sources() {
		sources = append(sources, v.String())
	}
	for _, v := range limit.Causes() {
		causes = append(causes, v.String())
	}
	for _, v := range limit.Classes() {
		classes = append(classes, v.String())
	}
	if diff := cmp.Diff(names[limit.Source](), sources); diff != "" {
		t.Errorf("Sources() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(names[limit.Cause]()[1:], causes); diff != "" {
		t.Errorf("Causes(), all but the undecided (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(names[limit.Class]()[1:], classes); diff != "" {
		t.Errorf("Classes(), all but none (-want +got):\n%s", diff)
	}
}

func TestNamesOfNoValue(t *testing.T) {
	for _, x := range []struct {
		got  fmt.Stringer
		want string
	}{
		{limit.Source(200), "source(200)"},
		{limit.Cause(200), "cause(200)"},
		{limit.Class(200), "class(200)"},
		{limit.Mode(200), "mode(200)"},
		{limit.Overdraw(200), "overdraw(200)"},
		{limit.Kind(200), "kind(200)"},
		{limit.Outcome(200), "outcome(200)"},
		{limit.Form(200), "form(200)"},
		{limit.Algorithm(0), "algorithm(0)"},
	} {
		if got := x.got.String(); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
	}
}

// The letters are in every stored state.
func TestAlgorithms(t *testing.T) {
	var got []string
	for a := 0; a < 256; a++ {
		if s := limit.Algorithm(a).String(); !strings.Contains(s, "(") {
			got = append(got, fmt.Sprintf("%c %s", a, s))
		}
	}
	want := []string{"B token_bucket", "C concurrency", "F fixed_window", "L sliding_log", "S sliding_window"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("algorithms (-want +got):\n%s", diff)
	}
}

func TestParseModeAndOverdraw(t *testing.T) {
	for m := limit.ModeLocal; m <= limit.ModeExempt; m++ {
		if got, ok := limit.ParseMode(m.String()); got != m || !ok {
			t.Errorf("ParseMode(%q) = %s, %v", m, got, ok)
		}
	}
	for o := limit.OverdrawAuto; o <= limit.OverdrawOff; o++ {
		if got, ok := limit.ParseOverdraw(o.String()); got != o || !ok {
			t.Errorf("ParseOverdraw(%q) = %s, %v", o, got, ok)
		}
	}
	for _, s := range []string{"", "Local", "auto ", "mode(7)", "true"} {
		if got, ok := limit.ParseMode(s); ok {
			t.Errorf("ParseMode(%q) = %s, want none", s, got)
		}
		if got, ok := limit.ParseOverdraw(s); ok {
			t.Errorf("ParseOverdraw(%q) = %s, want none", s, got)
		}
	}
}

// S5: auto is for a fixed window whose cost is the descriptor's own.
func TestOverdrawApplies(t *testing.T) {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow, limit.SlidingLog, limit.Concurrency} {
		for _, own := range []bool{false, true} {
			for o, want := range map[limit.Overdraw]bool{
				limit.OverdrawAuto: own && a == limit.FixedWindow,
				limit.OverdrawOn:   true,
				limit.OverdrawOff:  false,
			} {
				if got := o.Applies(a, own); got != want {
					t.Errorf("%s.Applies(%s, own %v) = %v, want %v", o, a, own, got, want)
				}
			}
		}
	}
}

// S25: the calls that may be repeated are those whose answer shows that nothing
// was executed.
func TestRepeatableClasses(t *testing.T) {
	var got []string
	for _, c := range limit.Classes() {
		if c.Repeatable() {
			got = append(got, c.String())
		}
		if c.Repeatable() && c.Ambiguous() {
			t.Errorf("%s is ambiguous, so repeating it may debit twice", c)
		}
	}
	// refused: a connection; moved: MOVED and ASK; topology: CLUSTERDOWN and MASTERDOWN.
	want := []string{"refused", "late", "moved", "read_only", "loading", "topology", "stale"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repeatable (-want +got):\n%s", diff)
	}
	if c := limit.ClassNone; c.Repeatable() || c.CountsForBreaker() || c.Ambiguous() {
		t.Error("none means something")
	}
}

// The table in the comment of Class is the one that the program has.
func TestClassTableIsInItsComment(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "enums.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var doc string
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && g.Specs[0].(*ast.TypeSpec).Name.Name == "Class" {
			doc = g.Doc.Text()
		}
	}
	var got [][]string
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, "\t") {
			got = append(got, strings.Fields(line))
		}
	}
	yes := map[bool]string{true: "yes", false: "-"}
	want := [][]string{{"class", "repeatable", "breaker", "ambiguous"}}
	for _, c := range slices.Insert(limit.Classes(), 0, limit.ClassNone) {
		want = append(want, []string{c.String(), yes[c.Repeatable()], yes[c.CountsForBreaker()], yes[c.Ambiguous()]})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("comment of Class (-data +comment):\n%s", diff)
	}
}
