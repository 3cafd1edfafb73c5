package rls_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/rls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen soon.
const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never came about: %s", what)
		case <-tick.C:
		}
	}
}

// allow decides every well-formed request as allowed.
func allow(_ context.Context, d *pipeline.Decision) {
	d.Code, d.Source, d.Cause = pipeline.OK, limit.SourceNone, limit.CauseNoRule
	if d.Request.Malformed {
		d.Code, d.Source, d.Cause, d.Retry = pipeline.OverLimit, limit.SourceLocal, limit.CauseMalformed, -1
	}
	for range d.Request.Descriptors {
		d.Statuses = append(d.Statuses, pipeline.Status{Code: d.Code})
	}
}

// running is a server that serves until the test ends.
type running struct {
	*rls.Server
	registry *prometheus.Registry
	served   chan error // what Serve returned; buffered
}

// deps fills in what a test does not care about.
func deps(d rls.Deps) rls.Deps {
	if d.Decide == nil {
		d.Decide = allow
	}
	if d.Set == nil {
		set := new(policy.Set)
		d.Set = func() *policy.Set { return set }
	}
	return d
}

func start(t *testing.T, cfg rls.Config, d rls.Deps) *running {
	t.Helper()
	r := prepare(t, cfg, d)
	if err := r.Listen(within(t)); err != nil {
		t.Fatal(err)
	}
	r.serve(t)
	return r
}

// prepare makes a server without starting it.
func prepare(t *testing.T, cfg rls.Config, d rls.Deps) *running {
	t.Helper()
	if cfg.TCP == "" && cfg.Unix == "" {
		cfg.TCP = "127.0.0.1:0"
	}
	registry := prometheus.NewRegistry()
	d = deps(d)
	d.Registerer = registry
	s, err := rls.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	return &running{Server: s, registry: registry, served: make(chan error, 1)}
}

func (r *running) serve(t *testing.T) {
	t.Helper()
	go func() { r.served <- r.Serve() }()
	r.SetServing(true)
	t.Cleanup(func() { r.stop(t) })
}

// stop stops the server and waits for Serve. It may be called twice.
func (r *running) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		t.Errorf("Stop() = %v", err)
	}
	err := <-r.served
	r.served <- nil
	if err != nil {
		t.Errorf("Serve() = %v", err)
	}
}

func (r *running) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(labels) == 2 && (len(m.GetLabel()) != 1 || m.GetLabel()[0].GetName() != labels[0] || m.GetLabel()[0].GetValue() != labels[1]) {
				continue
			}
			switch {
			case m.Counter != nil:
				return m.Counter.GetValue()
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			case m.Histogram != nil:
				return float64(m.Histogram.GetSampleCount())
			}
		}
	}
	t.Fatalf("no metric %s %v", name, labels)
	return 0
}

// socketIn is a path in a directory of the test's own. t.TempDir is too long
// for a socket where TMPDIR is long already.
func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "rls.sock")
}

// request is a request with one descriptor for each list of keys and values.
func request(descriptors ...[]limit.Entry) *pipeline.Request {
	r := &pipeline.Request{Domain: "test"}
	for _, entries := range descriptors {
		r.Descriptors = append(r.Descriptors, pipeline.Descriptor{Entries: entries})
	}
	return r
}
