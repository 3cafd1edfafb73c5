package rls

import (
	"strconv"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
)

// hint says when to try again. The header, the body and whatever else tells a
// client take it from here, so that they never differ.
type hint struct {
	ok      bool  // false: no wait helps, or nothing was denied
	millis  int64 // at least 1
	seconds int64 // rounded up, at least 1
}

// hintOf is the one place that makes hints of decisions.
func hintOf(d *pipeline.Decision) hint {
	if d.Code != pipeline.OverLimit || d.Retry < 0 {
		return hint{}
	}
	millis := max(1, d.Retry)
	return hint{ok: true, millis: millis, seconds: (millis-1)/1000 + 1}
}

// Problem types of draft-ietf-httpapi-ratelimit-headers.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// appendProblem appends the body of a denial, problem details of RFC 9457. It
// is shorter than 2 KiB, and nothing that a caller sent stands in it.
func appendProblem(b []byte, d *pipeline.Decision, h hint) []byte {
	if d.Unavailable {
		b = append(b, `{"type":"`+typeCapacity+`","title":"Temporarily reduced capacity","status":503`...)
	} else {
		b = append(b, `{"type":"`+typeQuota+`","title":"Quota exceeded","status":429`...)
	}
	b = append(b, `,"detail":`...)
	b = appendJSON(b, detail(d))
	if d.Rule != nil && d.Rule.ID != "" {
		b = append(b, `,"violated-policies":[`...)
		b = appendJSON(b, metadataText(d.Rule.ID))
		b = append(b, ']')
	}
	if h.ok {
		b = append(b, `,"retry_after":`...)
		b = strconv.AppendInt(b, h.seconds, 10)
	}
	return append(b, '}')
}

// detail says in a sentence why a request was denied.
func detail(d *pipeline.Decision) string {
	switch {
	case d.Cause == limit.CauseMalformed:
		return "The request cannot be counted."
	case d.Cause == limit.CauseZeroLimit:
		return "No requests of this kind are allowed."
	case d.Cause == limit.CauseTooLarge:
		return "The request costs more than its limit allows at all."
	case d.Cause == limit.CauseConcurrency:
		return "Too many requests are in progress."
	case d.Cause == limit.CauseOverload:
		return "The service that counts requests is overloaded."
	case d.Unavailable:
		return "The service that counts requests cannot be reached."
	}
	return "The limit for these requests is used up."
}
