package pipeline_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/memory"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// Understand the diff before you commit what -update wrote: the files say what
// Weir answers.
var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// TestScenarios runs the files of testdata. Each opens with prose on what it
// shows. A block is a command, its input lines, "----" and the output up to the
// next empty line:
//
//	policy               the set in force, from the YAML that follows; "---" between files
//	clock 1500ms         the store's clock goes on
//	store CLASS          the store answers nothing but this class; none: it answers
//	store layout RULE…   the keys of these rules have a newer layout
//	call DOMAIN [hits=n] [xN]   N equal requests, one descriptor in each line that follows:
//	                     key=value,key=value [hits=n] [negative] [limit=n/unit],
//	                     values with Go's escapes; "=" is one without entries
//	metrics              the counters of the pipeline that are not zero
//
// The output of a call is one line for each request: code, the rule named with
// source and cause, the retry; then the descriptors' statuses, each as code,
// limit, remaining and reset.
//
// Package e2e plays the files again, over the wire and a real Redis; but not
// those named failure…, whose store fails as this one is told to.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios: %v, %d files", err, len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newWorld(t).play(string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("%s (-file +got):\n%s", file, d)
			}
		})
	}
}

// t0 is a whole number of days since the epoch.
const t0 = int64(20_000 * 86_400_000)

// world is one pipeline over the embedded store, with a clock that only the
// scenario moves and a budget that no slow machine exceeds.
type world struct {
	t      testing.TB
	set    *policy.Set
	now    int64
	store  *memory.Store
	class  limit.Class
	layout []string
	spares func(domain string) bool // nil: every domain enforces
	reg    *prometheus.Registry
	p      *pipeline.Pipeline
	d      pipeline.Decision
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, now: t0, reg: prometheus.NewRegistry()}
	w.store = memory.New(memory.Config{}, func() int64 { return w.now }, prometheus.NewRegistry())
	w.p = pipeline.New(pipeline.Config{Budget: time.Hour}, pipeline.Deps{
		Policy:     func() *policy.Set { return w.set },
		Enforces:   func(domain string) bool { return w.spares == nil || !w.spares(domain) },
		Authority:  w,
		Registerer: w.reg,
	})
	return w
}

// Debit is the store, with the faults that the scenario asks for.
func (w *world) Debit(ctx context.Context, ask *limit.Ask) {
	if w.class == limit.ClassNone {
		w.store.Debit(ctx, ask)
		return
	}
	hit := false
	for i := range ask.Checks {
		c := &ask.Checks[i]
		c.Verdict = limit.Verdict{}
		if w.class != limit.ClassLayout || slices.Contains(w.layout, w.ruleOf(c.Params).ID) {
			c.Verdict.Class, hit = w.class, true
		}
	}
	if !hit {
		w.store.Debit(ctx, ask)
	}
}

func (w *world) ruleOf(p *limit.Params) *policy.Rule {
	for _, r := range w.set.Rules() {
		if r.Params == p {
			return r
		}
	}
	w.t.Fatal("a check has the parameters of no rule")
	return nil
}

func (w *world) play(text string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			i++
			continue
		}
		end := i
		for end < len(lines) && lines[end] != "----" {
			end++
		}
		for _, l := range lines[i:min(end, len(lines))] {
			out.WriteString(l + "\n")
		}
		out.WriteString("----\n" + w.run(strings.Fields(line), lines[i+1:min(end, len(lines))]))
		for i = end; i < len(lines) && lines[i] != ""; i++ {
		}
	}
	return out.String()
}

func (w *world) run(command, input []string) string {
	w.t.Helper()
	switch command[0] {
	case "policy":
		return w.load(strings.Join(input, "\n"))
	case "clock":
		d, err := time.ParseDuration(command[1])
		if err != nil {
			w.t.Fatal(err)
		}
		w.now += d.Milliseconds()
		return time.UnixMilli(w.now).UTC().Format("2006-01-02 15:04:05.000") + "\n"
	case "store":
		w.class, w.layout = class(w.t, command[1]), command[2:]
		return "ok\n"
	case "call":
		return w.call(command[1:], input)
	case "metrics":
		return counters(w.t, w.reg)
	}
	w.t.Fatalf("command %q is not known", command[0])
	return ""
}

func class(t testing.TB, name string) limit.Class {
	t.Helper()
	for _, c := range append(limit.Classes(), limit.ClassNone) {
		if c.String() == name {
			return c
		}
	}
	t.Fatalf("class %q is not known", name)
	return 0
}

func (w *world) load(text string) string {
	var files []*policy.File
	for i, f := range strings.Split(text, "\n---\n") {
		files = append(files, policy.Parse(fmt.Sprintf("%d.yaml", i), []byte(f)))
	}
	set, faults := policy.Compile(files, policy.Options{Defaults: policy.Defaults{OnStoreFailure: limit.ModeClosed}})
	if set == nil {
		return faults.Err().Error() + "\n"
	}
	w.p.Prepare(set)
	w.set = set
	return "ok\n"
}

func (w *world) call(args, input []string) string {
	req := pipeline.Request{Domain: args[0]}
	times := 1
	for _, a := range args[1:] {
		switch {
		case strings.HasPrefix(a, "hits="):
			req.HitsAddend = uint32(number(w.t, a[len("hits="):]))
		case strings.HasPrefix(a, "x"):
			times = int(number(w.t, a[1:]))
		case a == "malformed":
			req.Malformed = true
		default:
			w.t.Fatalf("call: %q is not known", a)
		}
	}
	for _, line := range input {
		req.Descriptors = append(req.Descriptors, descriptor(w.t, line))
	}
	var out strings.Builder
	for range times {
		w.d.Reset()
		w.d.Request = &req
		w.p.Decide(context.Background(), &w.d)
		out.WriteString(show(&w.d) + "\n")
	}
	return out.String()
}

func number(t testing.TB, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func descriptor(t testing.TB, line string) (d pipeline.Descriptor) {
	t.Helper()
	fields := strings.Fields(line)
	for _, kv := range strings.Split(fields[0], ",") {
		k, v, _ := strings.Cut(kv, "=")
		if k == "" {
			continue // a descriptor without entries
		}
		if u, err := strconv.Unquote(`"` + v + `"`); err == nil {
			v = u
		}
		d.Entries = append(d.Entries, limit.Entry{Key: k, Value: v})
	}
	for _, f := range fields[1:] {
		switch {
		case strings.HasPrefix(f, "hits="):
			d.Hits, d.HasHits = number(t, f[len("hits="):]), true
		case f == "negative":
			d.Negative = true
		case strings.HasPrefix(f, "limit="):
			n, unit, _ := strings.Cut(f[len("limit="):], "/")
			u, _ := policy.ParseUnit(unit)
			d.Limit = &pipeline.Override{RequestsPerUnit: uint32(number(t, n)), Unit: u, Multiplier: 1}
		default:
			t.Fatalf("descriptor: %q is not known", f)
		}
	}
	return d
}

func codeName(c pipeline.Code) string {
	switch c {
	case pipeline.OK:
		return "OK"
	case pipeline.OverLimit:
		return "OVER_LIMIT"
	}
	return fmt.Sprintf("code(%d)", c)
}

func show(d *pipeline.Decision) string {
	var b strings.Builder
	m := d.Metadata()
	fmt.Fprintf(&b, "%s %s/%s", codeName(d.Code), m.Source, m.Cause)
	if m.Rule != "" {
		fmt.Fprintf(&b, " by %s", m.Rule)
	}
	if d.Code == pipeline.OverLimit {
		if d.Retry >= 0 {
			fmt.Fprintf(&b, " retry %d ms", d.Retry)
		} else {
			b.WriteString(" no retry")
		}
	}
	if m.DenyAs != "" {
		b.WriteString(" as " + m.DenyAs)
	}
	if d.Spared {
		b.WriteString(" spared")
	}
	if m.Shadow != "" {
		b.WriteString(" shadow " + m.Shadow)
	}
	for i := range d.Statuses {
		s := &d.Statuses[i]
		fmt.Fprintf(&b, " | %s", codeName(s.Code))
		if s.HasLimit {
			fmt.Fprintf(&b, " %d/", s.RequestsPerUnit)
			if s.Multiplier != 1 {
				fmt.Fprintf(&b, "%d", s.Multiplier)
			}
			b.WriteString(s.Unit.String())
			if s.Name != "" {
				fmt.Fprintf(&b, " %q", s.Name)
			}
		}
		if s.HasLimit || s.Remaining > 0 {
			fmt.Fprintf(&b, " %d left", s.Remaining)
		}
		if s.ResetSeconds != 0 {
			fmt.Fprintf(&b, " %ds", s.ResetSeconds)
		}
	}
	return b.String()
}

// counters are the pipeline's counters that are not zero, sorted by name.
func counters(t testing.TB, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() == 0 {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			fmt.Fprintf(&b, "%s %s %v\n", strings.TrimPrefix(f.GetName(), "weir_pipeline_"), strings.Join(labels, ","), m.GetCounter().GetValue())
		}
	}
	return b.String()
}
