package pipeline

import (
	"time"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/policy"
)

// Request is a decoded RateLimitRequest. Strings hold the bytes that Envoy
// sent, valid UTF-8 or not.
type Request struct {
	Domain      string
	HitsAddend  uint32 // 0 means 1
	Descriptors []Descriptor

	// Malformed says that the request broke a bound that a client can reach;
	// it is denied as malformed. Descriptors then holds what was decoded.
	Malformed bool
}

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries []limit.Entry

	// Hits is the descriptor's own hits_addend when HasHits is set, as it
	// arrived: Envoy sends 2^63 for "nan".
	Hits    uint64
	HasHits bool

	// Negative is is_negative_hits.
	Negative bool

	// Limit is the request's own limit override, nil when there is none.
	Limit *Override
}

// Override is a limit that the request itself carries (semantics S9).
type Override struct {
	RequestsPerUnit uint32
	Unit            policy.Unit // UnitUnknown also for numbers that no unit has
	Multiplier      uint32      // at least 1
}

// Code is a response code; the numbers are those of RateLimitResponse.Code.
type Code uint8

// The codes. There is no unknown: an unset code is an allow in Envoy.
const (
	OK        Code = 1
	OverLimit Code = 2
)

// Status is the answer to one descriptor.
type Status struct {
	Code Code

	// Rule is the rule whose numbers are shown, nil for no current_limit.
	Rule *policy.Rule

	// Limit are the numbers of current_limit; RequestsPerUnit etc. differ from
	// the rule's for a request override. HasLimit says whether to send it.
	HasLimit        bool
	Name            string
	RequestsPerUnit uint32
	Unit            policy.Unit
	Multiplier      uint32

	Remaining uint32
	// ResetSeconds is duration_until_reset, rounded up, at least 1; 0 is none.
	ResetSeconds int64
}

// Decision is the answer to one request and how it came about.
type Decision struct {
	Request *Request

	// Set is the policy set to decide by. Decide takes the one in force where
	// the caller has not done so; when it is still nil then, the caller answers
	// with an RPC error (semantics S1).
	Set *policy.Set

	// Checks are the request's checks in the order of their kinds. A check's
	// Tag counts its limit among all that the descriptors met, in their order.
	Checks []limit.Check

	Statuses []Status // one per descriptor, in their order
	Code     Code

	// Source and Cause describe the whole decision: those of the rule named.
	Source limit.Source
	Cause  limit.Cause

	// Rule is the denying rule with the longest retry, or for an allowed
	// request the one whose numbers are the tightest; nil when no rule applied.
	Rule *policy.Rule

	// Spared says that the request would have been denied, and is not because its
	// domain does not enforce at present. Only Code, Unavailable and Retry then
	// differ from what they would be.
	Spared bool

	// Unavailable says that the denial is the limiter's fault and must become
	// a 503 (deny_as: unavailable), not a 429.
	Unavailable bool

	// Retry is the time after which to try again, in milliseconds; negative
	// when no wait helps. It has a meaning for denials only.
	Retry int64

	met      []met      // in the order of the descriptors: one for each limit of one, or one without
	bound    *bound     // the metrics of Set
	ask      *limit.Ask // what the authority gets; dropped once one gave up on it
	deadline time.Time  // zero until the authority is asked
	bad      bool       // the request as a whole is malformed
	asked    bool       // the authority was asked
	again    bool       // it is to be asked once more
}

// met is one limit that a descriptor met in the policy set, or that it met none.
type met struct {
	desc   int32        // index of the descriptor
	check  int32        // index in Checks when cause is CauseNone
	rule   *policy.Rule // nil: no rule
	series *series      // of the rule, or of the domain when there is no rule
	cause  limit.Cause  // of what gives no check: no_rule, unlimited, replaced
}

// Reset makes d as good as new and keeps its memory.
func (d *Decision) Reset() {
	clear(d.met)
	clear(d.Checks)
	clear(d.Statuses)
	*d = Decision{Checks: d.Checks[:0], Statuses: d.Statuses[:0], met: d.met[:0], ask: d.ask}
	if d.ask != nil {
		clear(d.ask.Checks)
	}
}

// Metadata are the values that a response says about its decision. All are
// words of closed sets or of the policy files.
type Metadata struct {
	Source, Cause string
	Rule          string // ID of the rule named, "" for none
	PolicyVersion string
	DenyAs        string // "unavailable" with every 503, else ""
	Enforced      string // "false" for a denial that was spared, else ""
	Shadow        string // ID of the first shadow rule that would have denied, "" for none
}

// Metadata returns them. It has a meaning after Decide only.
func (d *Decision) Metadata() Metadata {
	m := Metadata{Source: d.Source.String(), Cause: d.Cause.String()}
	if d.Rule != nil {
		m.Rule = d.Rule.ID
	}
	if d.bound != nil {
		m.PolicyVersion = d.bound.version
	}
	if d.Unavailable {
		m.DenyAs = "unavailable"
	}
	if d.Spared {
		m.Enforced = "false"
	}
	for i := range d.Checks {
		if c := &d.Checks[i]; c.Kind == limit.Shadow && c.Verdict.Outcome == limit.Deny {
			m.Shadow = d.met[c.Tag].rule.ID
			break
		}
	}
	return m
}

// denied says whether the verdicts so far deny the request.
func (d *Decision) denied() bool {
	if d.bad {
		return true
	}
	for i := range d.Checks {
		if c := &d.Checks[i]; c.Kind == limit.Enforced && c.Verdict.Outcome == limit.Deny {
			return true
		}
	}
	return d.quotaDenied()
}

// quotaDenied says that all quota checks deny: together they are one check
// (semantics S7).
func (d *Decision) quotaDenied() bool {
	any := false
	for i := range d.Checks {
		if c := &d.Checks[i]; c.Kind == limit.Quota {
			if c.Verdict.Outcome != limit.Deny {
				return false
			}
			any = true
		}
	}
	return any
}
