package sidecar

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/weir-rl/weir/pkg/rls"
)

// States of readiness: why the sidecar is not ready.
const (
	stateReady    = ""
	stateStarting = "starting"
	stateDraining = "draining"
)

func (s *Sidecar) setState(state string) {
	s.state.Store(&state)
	ready := state == stateReady
	s.service.SetServing(ready)
	if ready {
		s.metrics.ready.Set(1)
	} else {
		s.metrics.ready.Set(0)
	}
}

func (s *Sidecar) notReady() string { return *s.state.Load() }

// Run listens, serves until ctx ends or a part fails, and undoes everything in
// the reverse order: not ready, answer while Envoy drains, stop the service,
// stop reloading, close the store, close the HTTP listeners. It may be called once.
func (s *Sidecar) Run(ctx context.Context) error {
	down := &teardown{log: s.log}
	// The parts must outlive ctx: they serve until their own step stops them.
	group, parts := errgroup.WithContext(context.WithoutCancel(ctx))
	serve := func(name string, do func() error) {
		group.Go(func() error {
			if err := do(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	err := s.start(ctx, down, serve)
	if err == nil {
		s.setState(stateReady)
		close(s.started)
		s.log.Info("serving", "rls_tcp", s.Addrs().TCP, "rls_unix", s.Addrs().Unix,
			"ops", s.Addrs().Ops, "admin", s.Addrs().Admin, "store", s.cfg.Store.Type,
			"policy_version", s.set.Load().Version(), "rules", len(s.set.Load().Rules()))
		select {
		case <-ctx.Done():
			s.log.Info("stopping", "reason", context.Cause(ctx).Error())
		case <-parts.Done(): // a part failed; group.Wait says why
		}
	}
	if ctx.Err() != nil {
		err = nil // What the end of ctx broke off is no failure.
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain.Timeout)
	defer cancel()
	err = errors.Join(err, down.run(limit))
	err = errors.Join(err, group.Wait())
	s.log.Info("stopped")
	return err
}

// start binds every listener before anything serves, the service last: a
// successor must not take a socket before it can answer.
func (s *Sidecar) start(ctx context.Context, down *teardown, serve func(string, func() error)) error {
	for _, h := range []*httpServer{s.ops, s.admin} {
		if err := h.listen(ctx); err != nil {
			return fmt.Errorf("%s.address: %w; free the port or set another address", h.name, err)
		}
		down.push("close "+h.name, h.shutdown)
		serve(h.name, h.serve)
	}
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	storeEnded := make(chan struct{})
	down.push("close store", func(context.Context) error {
		stopStore()
		<-storeEnded // It answers what still waits, and waits for nobody.
		return s.store.Close()
	})
	serve("store", func() error {
		defer close(storeEnded)
		return s.store.Run(storeCtx)
	})
	reloadCtx, stopReload := context.WithCancel(context.WithoutCancel(ctx))
	versionsEnded := make(chan struct{})
	down.push("stop reloading", func(context.Context) error {
		stopReload()
		<-s.reload.ended // It waits for files at most,
		<-versionsEnded  // and this for one call of the store, which is bounded.
		return nil
	})
	serve("reload", func() error { return s.reload.run(reloadCtx) })
	serve("versions", func() error {
		defer close(versionsEnded)
		return s.followVersions(reloadCtx)
	})
	if err := s.service.Listen(ctx); err != nil {
		if errors.Is(err, rls.ErrServed) {
			err = fmt.Errorf("%w with rls.take_over", err)
		}
		return err
	}
	down.push("stop service", s.service.Stop)
	serve("rls", s.service.Serve)
	down.push("drain", s.drain)
	down.push("not ready", func(context.Context) error {
		s.setState(stateDraining)
		return nil
	})
	return nil
}

// drain goes on answering while Envoy, which mostly ends at the same time,
// still has requests: until it has closed its connections, at most for
// drain.delay.
func (s *Sidecar) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Drain.Delay)
	defer cancel()
	if !s.service.WaitIdle(ctx) {
		s.log.Info("envoy is still connected after the drain delay", "delay", s.cfg.Drain.Delay)
	}
	return nil
}

// Addrs says where a sidecar listens; "" is nowhere.
type Addrs struct{ TCP, Unix, Ops, Admin string }

// Addrs is complete once Started is closed.
func (s *Sidecar) Addrs() Addrs {
	return Addrs{TCP: s.service.TCPAddr(), Unix: s.cfg.RLS.Unix.Path, Ops: s.ops.addr(), Admin: s.admin.addr()}
}

// Started is closed when every listener is bound and the sidecar is ready.
func (s *Sidecar) Started() <-chan struct{} { return s.started }
