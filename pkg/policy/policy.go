// Package policy turns policy files, in envoyproxy/ratelimit's format with
// Weir's fields, into one immutable Set, and looks descriptors up in it.
//
// Loading is pure but for LoadFile and LoadPaths, and strict: every fault of
// every file is reported at once with file, line, path, value and mend, and a
// set with one error does not exist. What the peer loads, loads here to the
// same effect; what it ignores is a warning. The knowing differences: key and
// value are matched as a pair and never joined, so a key k_v and a key k with
// the value v are two descriptors; files load in name order instead of a
// random one, without those whose name begins with a dot; files are bounded
// (MaxFileSize, MaxDepth, MaxNodes). A Set never changes after Compile, so any
// number of goroutines may read it.
package policy

import "github.com/weir-rl/weir/pkg/limit"

// Unit is a window's unit; the numbers are those of RateLimitResponse's enum.
type Unit uint8

// The units (seconds per unit as in the peer: a month is 30 days, a year 365).
const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

// Rule is one compiled limit. All fields are read-only.
type Rule struct {
	Domain string
	Path   []Level // from the domain's root to the rule's own node

	// ID names the rule in logs and metadata: its name when it has one that no
	// other rule of the domain has, else its levels as key or key_value joined
	// by dots, with # and its name when it is one of a list. It is unique in its
	// domain: of several rules with one text, the second in file order gets #2
	// and so on.
	ID string

	Name     string   // its name, "" when there is none; in a list of rate_limits there is one
	Replaces []string // names of rules of the same request that this one replaces

	Unlimited bool
	Shadow    bool
	Quota     bool

	// Params are the rule's numbers, nil when Unlimited.
	Params *limit.Params

	// Unit, Multiplier and RequestsPerUnit are the numbers as configured, for
	// current_limit. Multiplier is at least 1.
	Unit            Unit
	Multiplier      uint32
	RequestsPerUnit uint32

	Overdraw       limit.Overdraw
	OnStoreFailure limit.Mode

	DetailedMetric bool           // the label carries the request's values
	Metadata       map[string]any // rule metadata, nil when there is none; values as in a protobuf Struct

	File string
	Line int

	keys *limit.KeyMaker

	label    string // the metric label when no value of the request enters it
	suffix   string // # and the name for one of a list, which the label ends in
	labelled bool   // a value of the request may enter the label
	shared   bool   // a level has share_threshold
}

// Level is one level of a rule's path.
type Level struct {
	Key, Value    string // as in the file; Value "" matches any value
	Pattern       bool   // Key or Value has a *
	Shared        bool   // share_threshold
	ValueToMetric bool
}

// Key returns the store key of a check of this rule for these entries, which
// must have matched it.
func (r *Rule) Key(entries []limit.Entry) limit.Key { return r.keys.Key(entries) }
