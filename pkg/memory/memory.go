// Package memory is the embedded authority: a bounded table of limit.States
// that decides asks with limit.Evaluate, exactly and atomically, for one
// process. It is what store.type memory means, and what holds local buckets
// while a store cannot answer.
//
// What it gives up: its states live in this process only. When the table is
// full, new keys of a rule share one bucket of that rule (semantics S28), so
// they are limited too early, never too late: no state that means anything is
// ever evicted, and fresh keys reset nobody's budget. It holds at most
// MaxEntries states, about 250 bytes each (a sliding log up to 20 KB more: 16
// for each entry and room for some), and one for each rule, or for each
// revision of a rule that still means anything: a rule whose numbers changed
// begins with a new shared bucket.
//
// A Store is safe for concurrent use.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/pkg/limit"
)

// DefaultMaxEntries is the bound of a table that is configured without one:
// some 250 MB when it is full.
const DefaultMaxEntries = 1_000_000

// Config bounds a Store. It is fixed once New has taken it.
type Config struct {
	// MaxEntries is the most states of keys that the table holds; 0 means
	// DefaultMaxEntries. A higher number costs memory, a lower one makes keys
	// share their rule's overflow bucket earlier.
	MaxEntries int
}

// Store is a bounded table of states. Use New.
type Store struct {
	now     func() int64
	max     int
	metrics *metrics

	mu       sync.Mutex
	entries  map[limit.Key]*entry
	overflow map[*limit.Params]*entry // the rules' shared buckets, while they are in use
	expiries expiries                 // of both
	work     work
}

// New returns an empty Store. now is its clock, in milliseconds since the Unix
// epoch; a state that was dropped because its time was over is not restored
// when the clock goes back afterwards.
func New(cfg Config, now func() int64, reg prometheus.Registerer) *Store {
	if cfg.MaxEntries <= 0 {
		cfg.MaxEntries = DefaultMaxEntries
	}
	s := &Store{
		now:      now,
		max:      cfg.MaxEntries,
		entries:  make(map[limit.Key]*entry),
		overflow: make(map[*limit.Params]*entry),
	}
	s.metrics = newMetrics(reg, func() float64 { return float64(s.Len()) })
	return s
}

// Len is the number of states in the table, overflow buckets included.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.expiries)
}

// Debit decides ask: it writes every verdict, or none and the class in every
// check. It never waits for anything but the other callers.
func (s *Store) Debit(ctx context.Context, ask *limit.Ask) {
	if ctx.Err() != nil {
		for i := range ask.Checks {
			ask.Checks[i].Verdict = limit.Verdict{Class: limit.ClassExpired}
		}
		return
	}
	s.mu.Lock()
	shared := s.debitLocked(ask)
	s.mu.Unlock()
	if shared > 0 {
		s.metrics.overflow.Add(float64(shared))
	}
}

// debitLocked returns how many checks met an overflow bucket.
func (s *Store) debitLocked(ask *limit.Ask) (shared int) {
	now := s.now()
	// Nothing here takes time, so the deadline is either over by now or not
	// to be missed any more.
	notAfter := now
	if !ask.Deadline.IsZero() && time.Until(ask.Deadline) <= 0 {
		notAfter = now - 1
	}
	// One state can be dropped for each that may be added, and some more, so
	// that the table shrinks after a burst without one call paying for all.
	s.dropLocked(now, len(ask.Checks)+4)

	w := &s.work
	w.begin()
	limit.Evaluate(ask, now, notAfter, func(c *limit.Check) *limit.Slot { return s.slotLocked(c, now) })
	for i := range w.places {
		s.storeLocked(&w.places[i], now)
		shared += w.places[i].shared
	}
	return shared
}

// work is what one call needs; the Store keeps it for the next one.
type work struct {
	places []place
	fresh  int // keys that may become entries
}

// place is one distinct state of a call: a key's own, or a rule's overflow
// bucket, which several keys can meet in one call.
type place struct {
	key    limit.Key
	params *limit.Params // of the overflow bucket, nil for a key's own state
	entry  *entry        // nil while nothing is stored
	slot   limit.Slot
	shared int // checks that met the overflow bucket
}

// begin empties the places; their slots must not move while Evaluate runs.
func (w *work) begin() {
	if w.places == nil {
		w.places = make([]place, 0, limit.MaxChecks)
	}
	w.places, w.fresh = w.places[:0], 0
}

// slotLocked returns the working copy for a check at now.
func (s *Store) slotLocked(c *limit.Check, now int64) *limit.Slot {
	w := &s.work
	for i := range w.places {
		if p := &w.places[i]; p.params == nil && p.key == c.Key {
			return &p.slot
		}
	}
	if e := s.entries[c.Key]; e != nil {
		return w.add(place{key: c.Key, entry: e, slot: limit.Slot{State: e.at(now)}})
	}
	common := s.overflow[c.Params]
	if len(s.entries)+w.fresh < s.max {
		w.fresh++
		p := place{key: c.Key}
		if common != nil {
			// The key may be one of those that share the bucket. Its own state
			// begins with all that was used there: otherwise it would have its
			// budget a second time as soon as the table has room again.
			st := common.at(now)
			p.slot.State = st.Clone()
		}
		return w.add(p)
	}
	for i := range w.places {
		if p := &w.places[i]; p.params == c.Params {
			p.shared++
			return &p.slot
		}
	}
	p := place{params: c.Params, entry: common, shared: 1}
	if common != nil {
		p.slot.State = common.at(now)
	}
	return w.add(p)
}

func (w *work) add(p place) *limit.Slot {
	w.places = append(w.places, p)
	return &w.places[len(w.places)-1].slot
}

// storeLocked keeps what Evaluate changed.
func (s *Store) storeLocked(p *place, now int64) {
	if p.slot.Dirty == nil {
		return
	}
	st := &p.slot.State
	if st.Unused() {
		if p.entry != nil {
			s.removeLocked(p.entry)
		}
		return
	}
	expiry := now + st.TTL(p.slot.Dirty, now) - slack
	e := p.entry
	if e == nil {
		e = &entry{key: p.key, params: p.params}
		if p.params != nil {
			s.overflow[p.params] = e
		} else {
			s.entries[p.key] = e
		}
		e.state, e.expiry = *st, expiry
		s.expiries.push(e)
		return
	}
	if p.slot.OlderRule() {
		expiry = max(expiry, e.expiry)
	}
	e.state = *st
	s.expiries.move(e, expiry)
}
