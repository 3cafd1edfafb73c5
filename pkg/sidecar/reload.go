package sidecar

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-rl/weir/pkg/policy"
)

const (
	// settleQuiet is how long the files must not change before they are loaded,
	// so that one is rarely met half-written. People wait for a reload, and
	// writers pause for less.
	settleQuiet = 100 * time.Millisecond

	// settleMost bounds that wait for files that change all the time.
	settleMost = 5 * time.Second

	// demandReads is how often a demanded load reads the files until two
	// readings in a row are the same.
	demandReads = 8

	// maxLoggedFaults bounds what one bad change writes to the log; admin shows
	// all of it.
	maxLoggedFaults = 20
)

// What can make the files be read again, as the log says it.
const (
	byFiles  = "files"
	bySignal = "signal"
	byAdmin  = "admin"
)

// codeVersionLower is the fault of a set whose version is lower than that of
// the set in force (semantics S35). No file is wrong in itself, so policy
// does not know it.
const codeVersionLower policy.Code = "version_lower"

// codePanic is the fault of files that meet a mistake of ours.
const codePanic policy.Code = "panic"

// reloader keeps the policy set in force equal to the files as long as they
// are good, and keeps the last good set otherwise. One goroutine, run, owns
// everything but the fields marked otherwise.
type reloader struct {
	paths   []string
	opts    policy.Options
	poll    time.Duration
	now     func() time.Time // wall clock, for what people read
	set     func() *policy.Set
	publish func(*policy.Set, time.Time)
	notice  func(Notice)
	log     *slog.Logger
	metrics *metrics
	hangup  <-chan struct{} // each value demands a load
	watch   watcher

	asked chan chan<- attempt     // from demand, in any goroutine
	ended chan struct{}           // closed by run when nobody answers any more
	last  atomic.Pointer[attempt] // the last one that had faults, nil when none has since; read by anybody
	tried [sha256.Size]byte       // of the files that were last loaded, or refused
	blind string                  // why nothing can be watched, as last logged
	still settling
}

// attempt is one attempt to load the files.
type attempt struct {
	at       time.Time
	reloaded bool          // another set is in force now
	faults   policy.Faults // why not; empty also when the files did not change
	set      *policy.Set   // in force afterwards
}

// run blocks until ctx ends.
func (r *reloader) run(ctx context.Context) error {
	defer close(r.ended)
	defer r.watch.close()
	var tick <-chan time.Time
	if r.poll > 0 {
		ticker := time.NewTicker(r.poll)
		defer ticker.Stop()
		tick = ticker.C
	}
	r.still.timer = time.NewTimer(settleMost)
	r.still.timer.Stop()
	defer r.still.timer.Stop()
	// The set in force was read by New; the files may have changed since.
	r.tried = r.set().Digest()
	r.look()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-r.watch.events():
			if !ok {
				r.watch.close() // It ended by itself; the next reading opens another one.
			}
			if !ok || r.watch.concerns(e) {
				r.still.stir(time.Now())
			}
		case _, ok := <-r.watch.errors(): // Events were lost.
			if !ok {
				r.watch.close()
			}
			r.still.stir(time.Now())
		case <-tick:
			if r.still.since.IsZero() { // Else the next reading is due anyway.
				r.look()
			}
		case <-r.still.timer.C:
			r.look()
		case <-r.hangup:
			r.load(r.readTwice(), bySignal)
		case answer := <-r.asked:
			answer <- r.load(r.readTwice(), byAdmin) // buffered
		}
	}
}

// demand has the files loaded at once. It is safe for concurrent use.
func (r *reloader) demand(ctx context.Context) (attempt, error) {
	answer := make(chan attempt, 1)
	select {
	case r.asked <- answer:
	case <-r.ended:
		return attempt{}, errors.New("the sidecar ends")
	case <-ctx.Done():
		return attempt{}, ctx.Err()
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return attempt{}, ctx.Err()
	}
}

// read reads the files, after it made sure that later changes are told.
func (r *reloader) read() (policy.Sources, [sha256.Size]byte) {
	why := ""
	if err := r.watch.sync(); err != nil {
		why = err.Error()
	}
	if why != r.blind && why != "" {
		r.log.Warn("policy files cannot be watched", "fault", why, "poll", r.poll)
	}
	r.blind = why
	r.metrics.watched(why == "")
	files := policy.ReadPaths(r.paths)
	return files, files.Digest()
}

// readTwice reads until nothing changed from one reading to the next, so that
// no set is a mixture of an old tree and a new one.
func (r *reloader) readTwice() policy.Sources {
	files, last := r.read()
	for range demandReads {
		again, digest := r.read()
		if digest == last {
			break
		}
		files, last = again, digest
	}
	return files
}

// look loads the files if they changed and do so no more.
func (r *reloader) look() {
	files, digest := r.read()
	if digest == r.tried {
		r.still.done()
		return
	}
	if r.still.settled(digest, time.Now()) {
		r.load(files, byFiles)
	}
}

// load makes the files the set in force, unless something is wrong with them.
func (r *reloader) load(files policy.Sources, by string) attempt {
	digest := files.Digest()
	again := r.tried == digest
	r.tried = digest
	current := r.set()
	a := attempt{at: r.now(), set: current}
	if digest == current.Digest() {
		if r.last.Swap(nil) != nil || by == bySignal {
			r.log.Info("policy unchanged", "by", by, "policy_version", current.Version(), "digest", digestText(current))
		}
		r.metrics.success.Set(1)
		return a
	}
	set, found := r.compile(files)
	a.faults = found.Of(policy.SeverityError)
	if set != nil && set.Version() < current.Version() {
		a.faults = append(a.faults, versionFault(set.Version(), current.Version()))
	}
	if len(a.faults) > 0 {
		r.refuse(a)
		if !again || by == bySignal { // Once for each change, and where the log is the only answer.
			r.logRefusal(a, by)
		}
		return a
	}
	if v := set.Version(); v > 0 && v == current.Version() {
		r.log.Warn("policy changed without a higher version", "policy_version", v)
	}
	a.set, a.reloaded = set, true
	r.publish(set, a.at)
	r.last.Store(nil)
	for _, n := range noticesOf(found) {
		r.notice(n)
	}
	r.log.Info("policy loaded", "by", by, "policy_version", set.Version(), "digest", digestText(set),
		"domains", len(set.Domains()), "rules", len(set.Rules()))
	return a
}

func (r *reloader) refuse(a attempt) {
	r.metrics.refused()
	r.last.Store(&a)
}

func (r *reloader) logRefusal(a attempt, by string) {
	r.log.Error("policy refused, the set before decides on", "by", by, "faults", len(a.faults),
		"policy_version", a.set.Version(), "digest", digestText(a.set))
	for i, f := range a.faults {
		if i == maxLoggedFaults {
			break
		}
		r.log.Error("policy fault", "text", f.Error())
	}
}

// compile survives a mistake of ours: what decides now must go on deciding.
func (r *reloader) compile(files policy.Sources) (set *policy.Set, found policy.Faults) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("loading the policy panicked", "panic", p, "stack", string(debug.Stack()))
			set, found = nil, policy.Faults{{
				Code: codePanic, Message: fmt.Sprintf("loading panicked: %v", p), Mend: "this is a fault of Weir; please report it",
			}}
		}
	}()
	return policy.Compile(files.Parse(), r.opts)
}

func versionFault(version, inForce uint64) policy.Fault {
	f := policy.Fault{
		Code: codeVersionLower, Path: "version", Value: fmt.Sprint(version),
		Message: fmt.Sprintf("version %d is lower than %d, which decides", version, inForce),
		Mend:    fmt.Sprintf("republish it as a higher one, at least %d", inForce+1),
	}
	if version == 0 {
		f.Value = ""
		f.Message = fmt.Sprintf("the set has no version, and version %d decides", inForce)
		f.Mend = fmt.Sprintf("give its files a version, at least %d", inForce+1)
	}
	return f
}

// digestText is as much of a set's digest as people need to compare two.
func digestText(set *policy.Set) string {
	digest := set.Digest()
	return hex.EncodeToString(digest[:8])
}

// settling waits for files that change to be quiet: for two readings in a row
// that are the same, settleQuiet apart, without an event between them.
type settling struct {
	timer *time.Timer // fires when the next reading is due
	since time.Time   // of the first change, zero when there is none
	last  [sha256.Size]byte
	read  bool // last was read after the last event
}

// stir notes a change.
func (s *settling) stir(now time.Time) {
	if s.since.IsZero() {
		s.since = now
	}
	s.read = false
	s.again(now)
}

func (s *settling) again(now time.Time) {
	s.timer.Reset(max(0, min(settleQuiet, s.since.Add(settleMost).Sub(now))))
}

// settled takes a reading and says whether it is to be used.
func (s *settling) settled(digest [sha256.Size]byte, now time.Time) bool {
	if s.since.IsZero() {
		s.since = now
	}
	if s.read && s.last == digest || now.Sub(s.since) >= settleMost {
		s.done()
		return true
	}
	s.last, s.read = digest, true
	s.again(now)
	return false
}

func (s *settling) done() {
	s.since, s.read = time.Time{}, false
	s.timer.Stop()
}

func newReloader(s *Sidecar, opts policy.Options, now func() time.Time, hangup <-chan struct{}) *reloader {
	return &reloader{
		paths: s.cfg.Policy.Paths, opts: opts, poll: s.cfg.Policy.Poll,
		now: now, set: s.set.Load, publish: s.publish, notice: s.notice,
		log: s.log.With("part", "reload"), metrics: s.metrics, hangup: hangup,
		watch: watcher{paths: s.cfg.Policy.Paths, open: fsnotify.NewWatcher},
		asked: make(chan chan<- attempt), ended: make(chan struct{}),
	}
}
