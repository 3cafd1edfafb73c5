package pipeline_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// value is the sum of a counter's series.
func value(t testing.TB, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// rules are the values of the label rule of a counter, and how many series
// each has.
func rules(t testing.TB, reg *prometheus.Registry, name string) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "rule" {
					all[l.GetValue()]++
				}
			}
		}
	}
	return all
}

const decisions = "weir_pipeline_decisions_total"

func TestMetricNames(t *testing.T) {
	w := newSimple(t)
	w.decide(request("five", "unknown"))
	if problems, err := testutil.GatherAndLint(w.reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// TestPreparedCountersBeginAtZero, so that a rate over them sees the first
// event.
func TestPreparedCountersBeginAtZero(t *testing.T) {
	w := newSimple(t)
	got := rules(t, w.reg, decisions)
	for _, r := range []string{"five", "zero", "open", "free", ""} {
		if got[r] == 0 {
			t.Errorf("rule %q has no counter before its first request; there are %v", r, got)
		}
	}
	if n := value(t, w.reg, decisions); n != 0 {
		t.Errorf("sum = %v, want 0", n)
	}
}

func TestCountersOfRemovedRulesGo(t *testing.T) {
	w := newSimple(t)
	w.decide(request("five", "zero"))
	w.decide(request("five"))
	if got := w.load("domain: d\ndescriptors: [{key: five, rate_limit: {unit: hour, requests_per_unit: 7}}]"); got != "ok\n" {
		t.Fatal(got)
	}
	w.decide(request("five"))
	got := rules(t, w.reg, decisions)
	if len(got) != 2 || got["five"] == 0 || got[""] == 0 {
		t.Errorf("labels = %v, want only those of the rule five and of none", got)
	}
	if n := value(t, w.reg, decisions); n != 2 {
		t.Errorf("sum = %v, want 2: a rule that stays goes on counting", n)
	}
}

const valued = `
domain: d
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 5}
`

// TestValuesOfCallersAreBounded: over one set and over reloads.
func TestValuesOfCallersAreBounded(t *testing.T) {
	w := newWorld(t)
	for reload := range 3 {
		if got := w.load(valued); got != "ok\n" {
			t.Fatal(got)
		}
		for i := range 150 {
			r := request("user")
			r.Descriptors[0].Entries[0].Value = fmt.Sprintf("u%d-%d", reload, i)
			w.decide(r)
		}
	}
	got := rules(t, w.reg, decisions)
	// 100 values, what comes after them, the prepared label of the rule itself,
	// and no rule.
	if len(got) != 100+3 || got["other"] == 0 || got["user_u0-99"] == 0 {
		t.Errorf("%d labels, want 103 with user_u0-99 and other: %v", len(got), got)
	}
	if n := value(t, w.reg, decisions); n != 450 {
		t.Errorf("sum = %v, want 450", n)
	}
}

// TestValuesOfCallersAreText: a label that is no UTF-8 would break the whole
// scrape, a long one the memory.
func TestValuesOfCallersAreText(t *testing.T) {
	w := newWorld(t)
	if got := w.load(valued); got != "ok\n" {
		t.Fatal(got)
	}
	for _, v := range []string{"\xff\xfe", "a\xc3", strings.Repeat("long", 20_000), strings.Repeat("é", 500), "", "\x00\n"} {
		r := request("user")
		r.Descriptors[0].Entries[0].Value = v
		w.decide(r)
	}
	for r := range rules(t, w.reg, decisions) {
		if len(r) > 210 || strings.ToValidUTF8(r, "") != r {
			t.Errorf("label %q", r)
		}
	}
	if n := value(t, w.reg, decisions); n != 6 {
		t.Errorf("sum = %v, want 6", n)
	}
}

func TestUnknownDomainsMakeNoSeries(t *testing.T) {
	w := newSimple(t)
	before := testutil.CollectAndCount(registered{w.reg}, decisions)
	for i := range 50 {
		r := request("five")
		r.Domain = fmt.Sprint("nowhere", i)
		w.decide(r)
		r.Malformed = true
		w.decide(r)
	}
	if after := testutil.CollectAndCount(registered{w.reg}, decisions); after != before+2 {
		t.Errorf("series = %d, want %d and one each for no_rule and malformed", after, before)
	}
}

// registered makes a registry a collector.
type registered struct{ *prometheus.Registry }

func (r registered) Describe(c chan<- *prometheus.Desc) { r.Registry.Describe(c) }
func (r registered) Collect(c chan<- prometheus.Metric) { r.Registry.Collect(c) }

func TestUntrustedRefundIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	w := newSimple(t)
	reg := prometheus.NewRegistry()
	w.p = pipeline.New(pipeline.Config{}, pipeline.Deps{
		Policy: func() *policy.Set { return w.set }, Authority: w, Registerer: reg,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for range 3 {
		for _, key := range []string{"five", "open"} {
			r := request(key)
			r.Descriptors[0].Negative = true
			r.Descriptors[0].Entries = []limit.Entry{{Key: key, Value: "secret-principal"}}
			w.decide(r)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one for each rule:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "principal") {
		t.Errorf("the log names a principal:\n%s", log.String())
	}
	if n := value(t, reg, "weir_pipeline_refunds_untrusted_total"); n != 6 {
		t.Errorf("refunds = %v, want 6", n)
	}
}

// TestRulesThatAreNoTextAreCounted: a policy file can hold bytes that no label
// may have.
func TestRulesThatAreNoTextAreCounted(t *testing.T) {
	w := newWorld(t)
	if got := w.load("domain: d\ndescriptors:\n- {key: !!binary /w==, rate_limit: {unit: hour, requests_per_unit: 5}}\n"); got != "ok\n" {
		t.Fatal(got)
	}
	w.p.Prepare(w.set)
	w.decide(request("\xff"))
	if n := value(t, w.reg, decisions); n != 1 {
		t.Errorf("sum = %v, want 1", n)
	}
	if got := rules(t, w.reg, decisions); got["\uFFFD"] == 0 {
		t.Errorf("rules %v, want \uFFFD", got)
	}
	w.p.Prepare(w.set)
	if n := value(t, w.reg, decisions); n != 1 {
		t.Errorf("sum = %v after the same set again, want 1", n)
	}
}
