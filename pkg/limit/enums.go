package limit

import "fmt"

// Source says who decided (semantics S33). It is closed: metrics, logs and
// response metadata use these names only.
type Source uint8

// The sources.
const (
	SourceNone      Source = iota // no limit applied
	SourceAuthority               // the store, atomically
	SourceNegcache                // a denial of the store that still holds
	SourceLease                   // tokens paid for in advance
	SourceFallback                // the rule's failure mode
	SourceLocal                   // this sidecar alone, without asking: limit 0, a malformed request
)

var sourceNames = [...]string{"none", "authority", "negcache", "lease", "fallback", "local"}

// String returns the name used in labels and metadata.
func (s Source) String() string { return name("source", sourceNames[:], uint8(s)) }

// Sources lists all of them, to create metrics before their first use.
func Sources() []Source {
	return []Source{SourceNone, SourceAuthority, SourceNegcache, SourceLease, SourceFallback, SourceLocal}
}

// Cause says why it was decided so (semantics S33). It is closed.
type Cause uint8

// The causes.
const (
	CauseNone Cause = iota // undecided
	CauseAllowed
	CauseLimit
	CauseTooLarge
	CauseZeroLimit
	CauseConcurrency
	CauseUnavailable
	CauseOverload
	CauseShareTooSmall
	CauseMalformed
	CauseNoRule
	CauseNoPolicy
	CauseUnlimited
	CauseReplaced
	CauseExempt
	CauseShadow
	CausePeek
	CauseRefund
	CauseAllowedByMode
)

var causeNames = [...]string{
	"", "allowed", "limit", "too_large", "zero_limit", "concurrency", "unavailable", "overload",
	"share_too_small", "malformed", "no_rule", "no_policy", "unlimited", "replaced", "exempt",
	"shadow", "peek", "refund", "allowed_by_mode",
}

// String returns the name used in labels and metadata.
func (c Cause) String() string { return name("cause", causeNames[:], uint8(c)) }

// Causes lists all of them but CauseNone.
func Causes() []Cause {
	all := make([]Cause, 0, len(causeNames)-1)
	for c := CauseAllowed; int(c) < len(causeNames); c++ {
		all = append(all, c)
	}
	return all
}

// Class is the closed set of reasons why an authority did not decide. What each
// of them means is data:
//
//	class          repeatable  breaker  ambiguous
//	none           -           -        -
//	refused        yes         yes      -
//	timeout        -           yes      yes
//	late           yes         -        -
//	overloaded     -           -        -
//	expired        -           -        -
//	wrong_slot     -           -        -
//	moved          yes         -        -
//	read_only      yes         yes      -
//	loading        yes         yes      -
//	out_of_memory  -           yes      -
//	auth           -           yes      -
//	bad_reply      -           yes      yes
//	script         -           yes      yes
//	topology       yes         yes      -
//	layout         -           -        -
//	stale          yes         -        -
//	connection     -           yes      yes
//	busy           -           yes      -
//
// Repeatable: nothing changed and the cause may be gone at once, so the call may
// be sent again within its deadline (semantics S25). Breaker: it is a sign of a
// primary in trouble. Ambiguous: the debit may have been executed.
type Class uint8

// The classes.
const (
	ClassNone        Class = iota
	ClassRefused           // no connection: refused, unreachable, closed before the send
	ClassTimeout           // no answer in time; the debit may have happened
	ClassLate              // the store answered that the deadline had passed; nothing changed
	ClassOverloaded        // our own queue is full; nothing was sent
	ClassExpired           // the deadline passed before the send; nothing was sent
	ClassWrongSlot         // keys of several slots in one call
	ClassMoved             // MOVED, ASK, TRYAGAIN: the slot lives elsewhere
	ClassReadOnly          // a replica
	ClassLoading           // the store reads its data from disk
	ClassOutOfMemory       // maxmemory without eviction
	ClassAuth              // wrong or missing credentials or permissions
	ClassBadReply          // not a Redis, or a reply of another form
	ClassScript            // the script failed, or was lost again right after a load
	ClassTopology          // CLUSTERDOWN, MASTERDOWN
	ClassLayout            // the key's state has a layout that is newer than this program
	ClassStale             // the store's clock lies outside the calendar boundaries that were sent
	ClassConnection        // the connection broke after the send; the debit may have happened
	ClassBusy              // another script blocks the store; nothing was executed
)

// classTable is the table above; a test holds the two equal.
var classTable = [...]struct {
	name                           string
	repeatable, breaker, ambiguous bool
}{
	ClassNone:        {"none", false, false, false},
	ClassRefused:     {"refused", true, true, false},
	ClassTimeout:     {"timeout", false, true, true},
	ClassLate:        {"late", true, false, false},
	ClassOverloaded:  {"overloaded", false, false, false},
	ClassExpired:     {"expired", false, false, false},
	ClassWrongSlot:   {"wrong_slot", false, false, false},
	ClassMoved:       {"moved", true, false, false},
	ClassReadOnly:    {"read_only", true, true, false},
	ClassLoading:     {"loading", true, true, false},
	ClassOutOfMemory: {"out_of_memory", false, true, false},
	ClassAuth:        {"auth", false, true, false},
	ClassBadReply:    {"bad_reply", false, true, true},
	ClassScript:      {"script", false, true, true},
	ClassTopology:    {"topology", true, true, false},
	ClassLayout:      {"layout", false, false, false},
	ClassStale:       {"stale", true, false, false},
	ClassConnection:  {"connection", false, true, true},
	ClassBusy:        {"busy", false, true, false},
}

// String returns the name used in labels.
func (c Class) String() string {
	if int(c) < len(classTable) {
		return classTable[c].name
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Repeatable says that nothing changed and that the call may be sent again
// within its deadline.
func (c Class) Repeatable() bool { return classTable[c].repeatable }

// CountsForBreaker says that the class is a sign of a primary in trouble.
func (c Class) CountsForBreaker() bool { return classTable[c].breaker }

// Ambiguous says that the debit may have been executed although nobody heard.
func (c Class) Ambiguous() bool { return classTable[c].ambiguous }

// Classes lists all of them but ClassNone.
func Classes() []Class {
	all := make([]Class, 0, len(classTable)-1)
	for c := ClassRefused; int(c) < len(classTable); c++ {
		all = append(all, c)
	}
	return all
}

// Mode is what a rule does while its authority cannot answer.
type Mode uint8

// The failure modes.
const (
	ModeLocal  Mode = iota // the rule's own algorithm over this sidecar's share
	ModeClosed             // deny, as unavailable
	ModeOpen               // allow, counted
	ModeExempt             // allow within a cap, counted
)

var modeNames = [...]string{"local", "closed", "open", "exempt"}

// String returns the name that policy files use.
func (m Mode) String() string { return name("mode", modeNames[:], uint8(m)) }

// ParseMode returns the mode of that name.
func ParseMode(s string) (Mode, bool) {
	for i, n := range modeNames {
		if n == s {
			return Mode(i), true
		}
	}
	return 0, false
}

// Overdraw says which denied costs a rule records (semantics S5).
type Overdraw uint8

// The overdraw settings.
const (
	OverdrawAuto Overdraw = iota // on for a fixed window whose cost is the descriptor's own
	OverdrawOn
	OverdrawOff
)

var overdrawNames = [...]string{"auto", "on", "off"}

// String returns the name that policy files use.
func (o Overdraw) String() string { return name("overdraw", overdrawNames[:], uint8(o)) }

// ParseOverdraw returns the setting of that name.
func ParseOverdraw(s string) (Overdraw, bool) {
	for i, n := range overdrawNames {
		if n == s {
			return Overdraw(i), true
		}
	}
	return 0, false
}

// Applies says whether a check of this algorithm overdraws; own says that its
// cost came as the descriptor's own hits_addend.
func (o Overdraw) Applies(a Algorithm, own bool) bool {
	switch o {
	case OverdrawOn:
		return true
	case OverdrawOff:
		return false
	}
	return own && a == FixedWindow
}

func name(kind string, names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}
