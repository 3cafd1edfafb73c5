package pipeline_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
)

var (
	deniedLine = regexp.MustCompile(`(?m)^OVER_LIMIT (\S+(?: by \S+)?) (?:retry \d+ ms|no retry)(?: as unavailable)?`)
	sparedLine = regexp.MustCompile(`(?m)^spared_total .*\n`)
)

// TestSparedScenarios plays the files of testdata while no domain enforces: the
// answers, the numbers and the metrics are the same to the letter, but for the
// code of what is denied (semantics S8).
func TestSparedScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios: %v, %d files", err, len(files))
	}
	all := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t)
		w.spares = func(string) bool { return true }
		got := sparedLine.ReplaceAllString(w.play(string(text)), "")
		want := deniedLine.ReplaceAllString(string(text), "OK $1 spared")
		if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
		denied := len(deniedLine.FindAllString(string(text), -1))
		if n := value(t, w.reg, "weir_pipeline_spared_total"); n != float64(denied) {
			t.Errorf("%s: %v requests were counted as spared, want the %d that are denied", file, n, denied)
		}
		all += denied
	}
	if all < 50 {
		t.Errorf("the scenarios deny %d times, too few to show anything", all)
	}
}

// TestSparesOneDomain: the others enforce, and what nobody knows does too.
func TestSparesOneDomain(t *testing.T) {
	w := newWorld(t)
	const zero = "\ndescriptors:\n  - key: zero\n    rate_limit: {unit: minute, requests_per_unit: 0}\n"
	if got := w.load("domain: d" + zero + "---\ndomain: other" + zero); got != "ok\n" {
		t.Fatal(got)
	}
	asked := 0
	w.spares = func(domain string) bool {
		asked++
		return domain == "d"
	}
	for domain, want := range map[string]string{
		"d":     "OK local/zero_limit by zero spared | OVER_LIMIT 0/minute 0 left",
		"other": "OVER_LIMIT local/zero_limit by zero no retry | OVER_LIMIT 0/minute 0 left",
	} {
		r := request("zero")
		r.Domain = domain
		if got := w.decide(r); got != want {
			t.Errorf("%s: %s, want %s", domain, got, want)
		}
	}
	r := request("zero")
	r.Domain, r.Malformed = "nowhere", true
	if got := w.decide(r); !strings.HasPrefix(got, "OVER_LIMIT local/malformed no retry") {
		t.Errorf("a malformed request of no known domain: %s, want a denial", got)
	}
	if asked != 3 {
		t.Errorf("asked %d times in 3 denied requests", asked)
	}
	// A rule that is gone, and its domain with it, takes its counter along.
	if got := w.load("domain: other" + zero); got != "ok\n" {
		t.Fatal(got)
	}
	if n := value(t, w.reg, "weir_pipeline_spared_total"); n != 0 {
		t.Errorf("%v are counted of a domain that no policy has any more", n)
	}
}

// TestSparedDecisionAllocatesNothing beyond what the same denial does.
func TestSparedDecisionAllocatesNothing(t *testing.T) {
	w := newSimple(t)
	w.spares = func(string) bool { return true }
	w.d.Request = request("zero")
	allocs := testing.AllocsPerRun(100, func() {
		r := w.d.Request
		w.d.Reset()
		w.d.Request = r
		w.p.Decide(context.Background(), &w.d)
	})
	if w.d.Code != pipeline.OK || !w.d.Spared || w.d.Cause != limit.CauseZeroLimit {
		t.Fatalf("decision = %s", show(&w.d))
	}
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
