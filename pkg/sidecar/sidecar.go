// Package sidecar puts the parts of Weir together into one process: settings,
// policy set, store, rate-limit service, ops and admin HTTP, start and end.
//
// It decides nothing about requests. New starts nothing; Run blocks until its
// context ends and everything is undone, or cut off at drain.timeout. A wrong
// setting or policy file ends a start; a Redis that is down does not, since
// every rule says what happens then. All methods are safe for concurrent use.
package sidecar

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// Options are settings, and what the process gives to its parts.
type Options struct {
	Config Config

	// Origin says where a setting came from, for /config; nil says nothing.
	Origin func(path string) string

	Build    Build
	Logger   *slog.Logger         // nil discards
	Registry *prometheus.Registry // nil makes one

	// Reload demands that the policy files are read again, once for each value.
	// nil demands nothing; the files are watched anyway.
	Reload <-chan struct{}

	// Now is the wall clock. Only what people read is taken from it (when the
	// policy was loaded); budgets and expiries are monotonic spans or the
	// store's own time. nil means time.Now.
	Now func() time.Time
}

// Sidecar is one process of Weir.
type Sidecar struct {
	cfg      Config
	origin   func(string) string
	log      *slog.Logger
	registry *prometheus.Registry
	metrics  *metrics

	set    atomic.Pointer[policy.Set] // in force; stored by publish
	loaded atomic.Pointer[loaded]     // the same for people; stored after set

	published chan struct{} // has a value after another set came into force; for followVersions

	store   store
	decide  *pipeline.Pipeline
	service service
	reload  *reloader
	ops     *httpServer
	admin   *httpServer

	started chan struct{}          // closed by Run when all listeners are bound
	state   atomic.Pointer[string] // why it is not ready, "" when it is; stored by Run
}

// store is an authority with a life of its own.
type store interface {
	Debit(ctx context.Context, ask *limit.Ask)
	Run(ctx context.Context) error // blocks until ctx ends
	Close() error
}

// service is the rate-limit service, as far as its life goes.
type service interface {
	Listen(ctx context.Context) error
	Serve() error // blocks until Stop
	SetServing(bool)

	// WaitIdle returns true when nobody is connected, false when ctx ends first.
	WaitIdle(ctx context.Context) bool

	// Stop lets calls end while ctx lasts, then cuts them off.
	Stop(ctx context.Context) error
	TCPAddr() string
}

// New wires a sidecar. It reads files but opens no connection and no listener.
// The error is a *StartError when settings, secret or policy files have faults.
func New(opts Options) (*Sidecar, error) {
	var faults []error
	for _, f := range opts.Config.Check() {
		faults = append(faults, f)
	}
	p, more := opts.Config.Prepare()
	if faults = append(faults, more...); len(faults) > 0 {
		return nil, &StartError{Faults: faults, Notices: p.Notices}
	}
	s := &Sidecar{
		cfg: opts.Config, origin: opts.Origin, log: opts.Logger, registry: opts.Registry,
		published: make(chan struct{}, 1), started: make(chan struct{}),
	}
	if s.origin == nil {
		s.origin = func(string) string { return "" }
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.registry == nil {
		s.registry = prometheus.NewRegistry()
	}
	now := opts.Now
	if now == nil {
		now = time.Now
	}
	for _, n := range p.Notices {
		s.notice(n)
	}
	s.metrics = newMetrics(s.registry, opts.Build)
	if err := s.wire(p.Set, now); err != nil {
		return nil, err
	}
	s.reload = newReloader(s, s.cfg.policyOptions(p.Scheme), now, opts.Reload)
	s.ops = newHTTPServer("ops", s.cfg.Ops.Address, s.opsHandler(), opsWriteTimeout, s.log)
	s.admin = newHTTPServer("admin", s.cfg.Admin.Address, s.adminHandler(), adminWriteTimeout, s.log)
	s.setState(stateStarting)
	return s, nil
}

func (s *Sidecar) notice(n Notice) {
	level := slog.LevelInfo
	if n.Warning {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "notice", "text", n.Text)
}

// loaded is a set and when it was loaded.
type loaded struct {
	set *policy.Set
	at  time.Time
}

// publish makes a set the one that decides every request from now on. Requests
// that are on their way end with the set that they began with.
func (s *Sidecar) publish(set *policy.Set, at time.Time) {
	s.decide.Prepare(set)
	s.set.Store(set)
	s.loaded.Store(&loaded{set, at})
	s.metrics.published(set, at)
	select {
	case s.published <- struct{}{}:
	default:
	}
}
