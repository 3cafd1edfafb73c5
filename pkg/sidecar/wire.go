package sidecar

import (
	"context"
	"time"

	"github.com/weir-rl/weir/pkg/authority"
	"github.com/weir-rl/weir/pkg/memory"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/rls"
)

// wire builds the parts that decide, from the store up.
func (s *Sidecar) wire(set *policy.Set, now func() time.Time) error {
	var err error
	if s.store, err = s.newStore(now); err != nil {
		return err
	}
	s.decide = pipeline.New(pipeline.Config{
		Budget:        s.cfg.Decision.Budget,
		ValuesPerRule: s.cfg.Metrics.ValuesPerRule,
	}, pipeline.Deps{
		Policy:     s.set.Load,
		Authority:  s.store,
		Logger:     s.log.With("part", "pipeline"),
		Registerer: s.registry,
	})
	s.publish(set, now())
	unavailable := rls.ByMetadata
	if s.cfg.RLS.UnavailableAs == UnavailableAsError {
		unavailable = rls.ByError
	}
	s.service, err = rls.New(rls.Config{
		TCP:            s.cfg.RLS.TCP,
		Unix:           s.cfg.RLS.Unix.Path,
		UnixMode:       s.cfg.RLS.Unix.Mode,
		TakeOver:       s.cfg.RLS.TakeOver,
		MaxRecvMsgSize: s.cfg.RLS.MaxRecvMsgSize,
		UnavailableAs:  unavailable,
	}, rls.Deps{
		Decide:     s.decide.Decide,
		Set:        s.set.Load,
		Logger:     s.log.With("part", "rls"),
		Registerer: s.registry,
	})
	return err
}

func (s *Sidecar) newStore(now func() time.Time) (store, error) {
	if s.cfg.Store.Type == StoreMemory {
		s.log.Warn("budgets are kept in this process alone: N sidecars admit N times each limit", "store", StoreMemory)
		return inMemory{memory.New(memory.Config{MaxEntries: s.cfg.Memory.MaxEntries}, steady(now()), s.registry)}, nil
	}
	return authority.New(authority.Config{
		URL:         s.cfg.Store.URL,
		KeyPrefix:   s.cfg.Store.KeyPrefix,
		QueueCalls:  s.cfg.Store.QueueCalls,
		DialTimeout: s.cfg.Store.DialTimeout,
	}, authority.Deps{
		Logger:     s.log.With("part", "authority"),
		Registerer: s.registry,
		Now:        now,
	})
}

// steady is the clock of the store in memory, in milliseconds. It begins at
// the wall clock, so that windows begin at full minutes and hours, and goes on
// by monotonic time: a wall clock that is set back or forward neither freezes
// a budget nor fills it (failure F06).
func steady(start time.Time) func() int64 {
	epoch, begin := start.UnixMilli(), time.Now()
	return func() int64 { return epoch + time.Since(begin).Milliseconds() }
}

// inMemory gives a memory.Store the life of a store; it has nothing to do.
type inMemory struct{ *memory.Store }

// Run waits for ctx.
func (inMemory) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (inMemory) Close() error { return nil }
