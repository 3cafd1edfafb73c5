package limit

// Slot is one key's state while requests are evaluated. Its zero value is an
// absent key.
type Slot struct {
	// State is as stored, or as the last request that changed it left it.
	State State

	// Newer says that the stored state has a layout that this program does not
	// read, or an algorithm that it does not decide; it must not be touched.
	Newer bool

	// Dirty is the rule whose write the state is, nil while it is as stored.
	// A dirty state must be written with the TTL that this rule gives it, or
	// deleted when it is Unused: an absent key is an unused budget. Of the rules
	// that changed it, it is the last one with the newest policy version.
	Dirty *Params

	work    State // the copy that the request at hand works on
	met     bool  // work is of the request at hand
	saved   int64 // what was used before its enforced and quota checks
	touched bool  // saved is of the request at hand
}

// Load sets the slot to a stored string and returns its form.
func (s *Slot) Load(b []byte) Form {
	state, form := DecodeState(b)
	*s = Slot{State: state, Newer: form == Newer || form == Known && !decided(state.Algorithm)}
	return form
}

// OlderRule says that the rule that changed the state has an older policy
// version than the state. Such a write must not shorten the key's TTL
// (semantics S14).
func (s *Slot) OlderRule() bool { return s.Dirty != nil && s.Dirty.Version < s.State.Version }

// keep makes the request's copy the state, for a change that this rule made. An
// older rule's change after a newer one's leaves the TTL to the newer.
func (s *Slot) keep(p *Params) {
	if s.Dirty == nil || p.Version == s.work.Version || s.OlderRule() {
		s.Dirty = p
	}
	s.State = s.work
}

// prepare makes the request's copy of the state and brings it to now and into
// the form that the rule runs: its own, or the stored one when the rule's
// policy version is older.
func (s *Slot) prepare(p *Params, now int64) Class {
	if s.Newer {
		return ClassLayout
	}
	st := &s.work
	if !s.met {
		s.met, s.work = true, s.State
		// A window that has passed counts 0; a state that counts 0 is an absent one.
		if st.Unused() || st.Algorithm == FixedWindow && st.End <= now {
			*st = State{}
		}
	}
	end := int64(0)
	if windowed(p.Algorithm) || windowed(st.Algorithm) {
		var ok bool
		if end, ok = p.windowEnd(now); !ok {
			return ClassStale
		}
	}
	switch st.Algorithm {
	case SlidingWindow:
		st.slide(p, now)
	case SlidingLog:
		st.expire(p, now)
	}
	if st.Algorithm == 0 {
		st.Algorithm, st.Version = p.Algorithm, p.Version
		if p.Algorithm == TokenBucket {
			st.Updated = now
		}
	}
	older := p.Version < st.Version
	if !older {
		st.Version = p.Version
		st.convert(p, now)
	}
	switch {
	case st.Algorithm == TokenBucket:
		st.drain(p, now, older)
	case windowed(st.Algorithm) && (st.End == 0 || st.Length != p.Length() && !older):
		// A window of the rule's length that ends later than now's stays in
		// force until the clock passes its end: the clock went back (semantics
		// S15). One of another length carries its count into now's window; but
		// not for an older rule, or two sidecars on two versions would flip the
		// key.
		if st.Previous > 0 {
			st.Used, st.Previous = min(st.estimate(p, now), maxSliding), 0
		}
		st.End, st.Length = end, p.Length()
	}
	return ClassNone
}

// amount is a cost in the unit of the state's Used.
func (s *State) amount(cost int64) int64 {
	if s.Algorithm == TokenBucket {
		return cost * 1000
	}
	return cost
}

// hits is an amount of the state's Used in whole hits.
func (s *State) hits(amount int64) int64 {
	if s.Algorithm == TokenBucket {
		return amount / 1000
	}
	return amount
}

// budget is the rule's whole budget in the unit of the state's Used.
func (s *State) budget(p *Params) int64 {
	switch s.Algorithm {
	case TokenBucket:
		return p.Capacity * 1000
	case SlidingLog:
		return p.logLimit()
	}
	return p.Limit
}

// used is what is used at now, in the unit of the state's Used.
func (s *State) used(p *Params, now int64) int64 {
	if s.Algorithm == SlidingWindow {
		return s.estimate(p, now)
	}
	return s.Used
}

// fits says whether the cost can be taken; a peek fits unless the budget is
// overdrawn, which a log never is (semantics S6).
func (s *State) fits(p *Params, now, cost int64) bool {
	if cost == 0 && s.Algorithm == SlidingLog {
		return true
	}
	return s.used(p, now)+s.amount(cost) <= s.budget(p)
}

// record keeps a cost that Used counts already, for a check of this rule.
func (s *Slot) record(p *Params, now, cost int64) {
	if s.work.Algorithm == SlidingLog {
		s.work.add(now, cost)
	}
	s.keep(p)
}

// overdraw records a cost that did not fit (semantics S5): a window takes it
// whole, but nothing more once it is over its limit; a bucket's debt ends at
// the rule's cap; a log holds what was admitted, nothing else. It never lowers
// what is used.
func (s *Slot) overdraw(p *Params, now, cost int64) {
	st, before := &s.work, s.work.Used
	switch {
	case st.Algorithm == TokenBucket:
		st.Used = max(st.Used, min(p.MaxLevel(), st.Used+st.amount(cost)))
	case windowed(st.Algorithm) && st.used(p, now) <= p.Limit:
		st.Used += cost
	}
	if st.Used != before {
		s.keep(p)
	}
}

// refund gives back at most what was used: no credit, no debt, no state. A
// sliding window gives back what the current window took, then hits of the
// previous one, which count by their weight; a log its newest hits.
func (s *Slot) refund(p *Params, cost int64) {
	st := &s.work
	back := min(st.Used, st.amount(cost))
	before := min(st.Previous, cost-st.hits(back))
	if back == 0 && before == 0 {
		return
	}
	st.Previous -= before
	if st.Algorithm == SlidingLog {
		st.remove(back)
	}
	st.Used -= back
	if st.Used == 0 {
		st.Remainder = 0
	}
	s.keep(p)
}

// allowed fills the numbers of an allowing check (semantics S18).
func (s *State) allowed(p *Params, now int64, v *Verdict) {
	v.Outcome, v.Source, v.Cause, v.Retry = Allow, SourceAuthority, CauseAllowed, 0
	v.Remaining = s.hits(max(0, s.budget(p)-s.used(p, now)))
	switch s.Algorithm {
	case TokenBucket:
		v.Reset = s.drainTime(p, now, s.Used)
	case SlidingLog:
		v.Reset = s.logTime(p, now, 1)
	default:
		v.Reset = s.End - now
	}
}

// denied fills the numbers of a denying check (semantics S18). need is its cost
// plus what earlier checks of the same request took from the key; a need above
// the budget can never be met.
func (s *State) denied(p *Params, now, need int64, v *Verdict) {
	v.Outcome, v.Source, v.Cause, v.Remaining = Deny, SourceAuthority, CauseLimit, 0
	budget := s.budget(p)
	never := s.amount(need) > budget
	by := s.Used + s.amount(need) - budget
	switch {
	case s.Algorithm == FixedWindow, never && s.Algorithm == SlidingWindow:
		v.Reset = s.End - now
	case never:
		v.Reset = -1
	case s.Algorithm == SlidingWindow:
		v.Reset = s.slideTime(p, now, need)
	case s.Algorithm == SlidingLog:
		v.Reset = s.logTime(p, now, by)
	default:
		v.Reset = s.drainTime(p, now, by)
	}
	v.Retry = v.Reset
	if never {
		v.Cause, v.Retry = CauseTooLarge, -1
	}
}

// Evaluate decides the checks of one request together, at one instant of the
// store's clock, over the working copies that slot returns (one for each key,
// the same one for the same key). notAfter is the instant of that clock after
// which nothing may be debited any more (semantics S23).
//
// It writes every verdict and marks the slots that it changed, or it changes
// nothing and gives every check a class: late, stale, or layout for the checks
// whose key cannot be read (their neighbours stay undecided without a class).
//
// The order is that of semantics S2 and S3: refunds, which stay whatever
// follows; then the enforced and the quota checks, cumulatively on one copy
// that is kept only if all of them allow; then, for an allowed request, the
// shadow checks, each for itself. The Redis script does the same, line by line.
//
// The entries of a log are changed in place: no two slots may share them, and
// what a changed slot was loaded from must be given up for its State.
func Evaluate(a *Ask, now, notAfter int64, slot func(*Check) *Slot) {
	e := evaluation{ask: a, now: now}
	if now > notAfter {
		e.undecided(ClassLate)
		return
	}
	for i := range a.Checks {
		s := slot(&a.Checks[i])
		s.met, s.touched = false, false
		e.slots[i] = s
	}
	if !e.prepare() {
		return
	}
	n := len(a.Checks)
	to := 0
	for to < n && a.Checks[to].Kind == Refund {
		c := &a.Checks[to]
		e.slots[to].refund(c.Params, c.Cost)
		to++
	}
	refunds := to
	for to < n && a.Checks[to].Kind < Shadow {
		to++
	}
	allowed := e.take(refunds, to)
	if !allowed {
		e.rollBack(refunds, to)
	}
	e.record(refunds, to, allowed)
	for i := range to {
		c, st := &a.Checks[i], &e.slots[i].work
		if e.over[i] {
			st.denied(c.Params, now, e.need[i], &c.Verdict)
		} else {
			st.allowed(c.Params, now, &c.Verdict)
		}
	}
	if allowed {
		e.shadow(to, n)
		return
	}
	for i := to; i < n; i++ {
		a.Checks[i].Verdict = Verdict{Outcome: NotEvaluated}
	}
}

// evaluation is one run of Evaluate.
type evaluation struct {
	ask   *Ask
	now   int64
	slots [MaxChecks]*Slot // of each check
	need  [MaxChecks]int64 // its cost and what earlier checks of the request took from its key, in hits
	over  [MaxChecks]bool  // it does not fit; refunds always do
}

func (e *evaluation) undecided(class Class) {
	for i := range e.ask.Checks {
		e.ask.Checks[i].Verdict = Verdict{Class: class}
	}
}

// prepare brings every key to now, and says whether all can be decided.
func (e *evaluation) prepare() bool {
	ok, stale := true, false
	for i := range e.ask.Checks {
		c := &e.ask.Checks[i]
		class := e.slots[i].prepare(c.Params, e.now)
		c.Verdict = Verdict{Class: class}
		ok = ok && class == ClassNone
		stale = stale || class == ClassStale
	}
	if stale {
		e.undecided(ClassStale)
	}
	return ok
}

// take runs the enforced and quota checks cumulatively and says whether the
// request is allowed. The quota checks are together one enforced check that
// denies when all of them deny (semantics S7).
func (e *evaluation) take(from, to int) bool {
	allowed, quotas, full := !e.ask.Denied, 0, 0
	for i := from; i < to; i++ {
		c, s := &e.ask.Checks[i], e.slots[i]
		if !s.touched {
			s.touched, s.saved = true, s.work.Used
		}
		e.need[i] = s.work.hits(s.work.Used-s.saved) + c.Cost
		e.over[i] = !s.work.fits(c.Params, e.now, c.Cost)
		if c.Kind == Quota {
			quotas++
		}
		switch {
		case !e.over[i]:
			s.work.Used += s.work.amount(c.Cost)
		case c.Kind == Quota:
			full++
		default:
			allowed = false
		}
	}
	return allowed && (quotas == 0 || full < quotas)
}

// rollBack undoes what take took.
func (e *evaluation) rollBack(from, to int) {
	for i := from; i < to; i++ {
		e.slots[i].work.Used = e.slots[i].saved
	}
}

// record keeps what the checks of an allowed request took, and what did not fit
// where the check says so: in an allowed request only quota checks can be
// meant, in a denied one all that deny.
func (e *evaluation) record(from, to int, allowed bool) {
	for i := from; i < to; i++ {
		c, s := &e.ask.Checks[i], e.slots[i]
		switch {
		case e.over[i] && c.Overdraw:
			s.overdraw(c.Params, e.now, c.Cost)
		case !e.over[i] && allowed && c.Cost > 0:
			s.record(c.Params, e.now, c.Cost)
		}
	}
}

// shadow runs the shadow checks of an allowed request, each for itself.
func (e *evaluation) shadow(from, to int) {
	for i := from; i < to; i++ {
		c, s := &e.ask.Checks[i], e.slots[i]
		if s.work.fits(c.Params, e.now, c.Cost) {
			if c.Cost > 0 {
				s.work.Used += s.work.amount(c.Cost)
				s.record(c.Params, e.now, c.Cost)
			}
			s.work.allowed(c.Params, e.now, &c.Verdict)
			continue
		}
		if c.Overdraw {
			s.overdraw(c.Params, e.now, c.Cost)
		}
		s.work.denied(c.Params, e.now, c.Cost, &c.Verdict)
	}
}

// Apply decides one enforced check of the given cost on one state: the state
// afterwards and the verdict. An older policy version, a stale calendar or a
// past deadline are matters of Evaluate.
func Apply(s State, p *Params, now, cost int64) (State, Verdict) {
	slot := Slot{State: s.Clone()}
	a := Ask{Checks: []Check{{Params: p, Cost: cost, Kind: Enforced}}}
	Evaluate(&a, now, now, func(*Check) *Slot { return &slot })
	if slot.Dirty == nil {
		return s, a.Checks[0].Verdict
	}
	return slot.State, a.Checks[0].Verdict
}
