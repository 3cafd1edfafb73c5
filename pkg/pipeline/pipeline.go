// Package pipeline decides one rate-limit request. Decide shows the whole way
// on one screen; the stages are numbered as in docs/ARCHITECTURE.md.
//
// A Decision is filled by one goroutine at a time and is never shared. Every
// request gets one: nothing a client can send makes Decide fail.
package pipeline

import (
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
	Set     *policy.Set

	// Checks are the request's checks in the order of their kinds.
	Checks []limit.Check

	Statuses []Status // one per descriptor, in their order
	Code     Code

	// Source and Cause describe the whole decision: those of the rule named.
	Source limit.Source
	Cause  limit.Cause

	// Rule is the denying rule with the longest retry, or for an allowed
	// request the one whose numbers are the tightest; nil when no rule applied.
	Rule *policy.Rule

	// Unavailable says that the denial is the limiter's fault and must become
	// a 503 (deny_as: unavailable), not a 429.
	Unavailable bool

	// Retry is the time after which to try again, in milliseconds; negative
	// when no wait helps. It has a meaning for denials only.
	Retry int64
}
