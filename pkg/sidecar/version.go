package sidecar

import (
	"context"
	"time"
)

// versions keep the highest version of policies where every sidecar of a
// namespace can ask for it (semantics S35).
type versions interface {
	// HighestVersion returns the highest version that was recorded in the
	// namespace, after it recorded own if that is none lower; 0 is no version.
	// Records are forgotten when nobody renews them for some days.
	HighestVersion(ctx context.Context, namespace string, own uint64) (uint64, error)
}

const (
	// versionEvery is how often a sidecar renews and asks; versionRetry after
	// the store did not answer.
	versionEvery = time.Minute
	versionRetry = 10 * time.Second

	// versionTimeout bounds one of these calls, for which only the end waits.
	versionTimeout = 500 * time.Millisecond
)

// followVersions tells whether the set in force is older than what the
// namespace has seen, until ctx ends. Such a set decides all the same: it may be
// what somebody wants, and one that is refused at a start protects nothing.
func (s *Sidecar) followVersions(ctx context.Context) error {
	shared, ok := s.store.(versions)
	if !ok {
		return nil // A store in memory has seen no other sidecar.
	}
	next := time.NewTimer(versionEvery) // The set of the start was published.
	defer next.Stop()
	var said uint64 // the highest version that a warning named
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.published:
		case <-next.C:
		}
		own := s.set.Load().Version()
		limited, cancel := context.WithTimeout(ctx, versionTimeout)
		highest, err := shared.HighestVersion(limited, s.cfg.Store.Namespace, own)
		cancel()
		if err != nil {
			next.Reset(versionRetry) // The metric stays; the store's own metrics say what is wrong.
			continue
		}
		next.Reset(versionEvery)
		behind := max(highest, own) - own
		s.metrics.behind.Set(float64(behind))
		if behind > 0 && highest != said {
			s.log.Warn("the policy is older than what this namespace has seen", "policy_version", own, "highest", highest,
				"mend", "bring these files up to date, or republish them as a higher version")
			said = highest
		}
		if behind == 0 {
			said = 0
		}
	}
}
