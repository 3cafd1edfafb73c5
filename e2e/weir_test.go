package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/sidecar"
)

const (
	// patience ends a test that would hang; nothing is decided by it.
	patience = time.Minute

	// filterTimeout is how long Envoy waits for the sidecar, which waits for Redis as long as that leaves.
	filterTimeout = time.Second
	budget        = 10 * time.Second

	// largeTimeout is for messages of megabytes, which the race detector makes slow.
	largeTimeout = 20 * time.Second

	// shortBudget is for decisions that Redis does not answer.
	shortBudget = 500 * time.Millisecond
)

// weir is a sidecar that runs in this process.
type weir struct {
	*sidecar.Sidecar
	config   sidecar.Config
	prepared sidecar.Prepared
	registry *prometheus.Registry
	cancel   context.CancelFunc
	ended    chan error
}

// settings are those of a sidecar on a Redis, on free ports and with this socket.
func settings(redisURL, namespace, socket string, policies ...string) sidecar.Config {
	c := sidecar.Defaults()
	c.RLS.TCP, c.RLS.Unix.Path = "127.0.0.1:0", socket
	c.Ops.Address, c.Admin.Address = "", ""
	c.Policy.Paths = policies
	c.PolicyDefaults.OnStoreFailure = limit.ModeClosed
	c.Store.Type, c.Store.URL, c.Store.Namespace = sidecar.StoreRedis, redisURL, namespace
	c.Decision.Budget = budget
	c.Drain.Delay = 0 // Whoever ends a sidecar here has ended its Envoy before.
	return c
}

// startWeir runs a sidecar until close.
func startWeir(c sidecar.Config) (*weir, error) { return startWeirAt(c, nil) }

// startWeirAt is startWeir with a wall clock of the sidecar's own.
func startWeirAt(c sidecar.Config, now func() time.Time) (*weir, error) {
	w := &weir{config: c, registry: prometheus.NewRegistry(), ended: make(chan error, 1)}
	var faults []error
	if w.prepared, faults = c.Prepare(); len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	var err error
	if w.Sidecar, err = sidecar.New(sidecar.Options{Config: c, Registry: w.registry, Now: now}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() { w.ended <- w.Run(ctx) }()
	select {
	case <-w.Started():
		return w, nil
	case err := <-w.ended:
		cancel()
		return nil, fmt.Errorf("the sidecar ended before it started: %w", err)
	case <-time.After(patience):
		cancel()
		return nil, errors.New("the sidecar does not start")
	}
}

func (w *weir) close() error {
	w.cancel()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(patience):
		return errors.New("the sidecar does not end")
	}
}

// key returns the store's key of a descriptor, as `sidecar key` prints it.
func (w *weir) key(t testing.TB, domain string, entries ...string) string {
	t.Helper()
	var list []limit.Entry
	for i := 0; i+1 < len(entries); i += 2 {
		list = append(list, limit.Entry{Key: entries[i], Value: entries[i+1]})
	}
	rules := w.prepared.Set.Domain(domain).Match(list)
	if len(rules) != 1 {
		t.Fatalf("%d rules of domain %s for %q, want one", len(rules), domain, entries)
	}
	key := rules[0].Key(list)
	return string(key.Append(nil, w.prepared.Scheme.Prefix))
}

// counter returns the sum of a counter over the series that have these labels, given as name, value, name, value ...
func (w *weir) counter(t testing.TB, name string, labels ...string) uint64 {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i+1 < len(labels); i += 2 {
				fits = fits && has[labels[i]] == labels[i+1]
			}
			if fits {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return uint64(sum)
}
