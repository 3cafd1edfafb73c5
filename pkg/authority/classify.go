package authority

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-rl/weir/pkg/limit"
)

// classNoScript is the script's absence: nothing was executed, and loading it
// mends it. It never leaves this package.
const classNoScript = limit.Class(255)

// prefixes maps the first word of a Redis error to its class.
var prefixes = map[string]limit.Class{
	"NOSCRIPT":    classNoScript,
	"MOVED":       limit.ClassMoved,
	"ASK":         limit.ClassMoved,
	"TRYAGAIN":    limit.ClassMoved,
	"CROSSSLOT":   limit.ClassWrongSlot,
	"CLUSTERDOWN": limit.ClassTopology,
	"MASTERDOWN":  limit.ClassTopology,
	"READONLY":    limit.ClassReadOnly,
	"MISCONF":     limit.ClassReadOnly, // the store refuses writes until it can persist
	"NOREPLICAS":  limit.ClassReadOnly, // likewise until enough replicas listen
	"LOADING":     limit.ClassLoading,
	"BUSY":        limit.ClassBusy,
	"OOM":         limit.ClassOutOfMemory,
	"NOAUTH":      limit.ClassAuth,
	"WRONGPASS":   limit.ClassAuth,
	"NOPERM":      limit.ClassAuth,
}

// authTexts are the forms of a refused login, and of a command that a script may
// not run for its user, that have no prefix of their own.
var authTexts = []string{
	"invalid password", "invalid username-password", "AUTH <password> called without",
	"The user executing the script can't", // until Redis 7.0
	"ACL failure in script",               // since
}

// classify names the class of an error of a script call or of the connection
// that it needed. sent says that the call was written, at least in part, so
// that it may have been executed.
func classify(err error, sent bool) limit.Class {
	if err == nil {
		return limit.ClassNone
	}
	var re redis.Error
	if errors.As(err, &re) {
		return classifyReply(re.Error())
	}
	if !sent {
		if errors.Is(err, errReply) || isProtocol(err) {
			return limit.ClassBadReply
		}
		return limit.ClassRefused
	}
	var ne net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.As(err, &ne) && ne.Timeout():
		return limit.ClassTimeout
	case errors.Is(err, errReply), isProtocol(err):
		return limit.ClassBadReply
	}
	return limit.ClassConnection
}

// classifyReply names the class of an error that the store answered with.
func classifyReply(text string) limit.Class {
	word, _, _ := strings.Cut(text, " ")
	if c, ok := prefixes[word]; ok {
		return c
	}
	// Redis 6.2 wraps the error of a command inside a script into its own.
	for _, p := range []string{"OOM", "READONLY", "MISCONF", "NOREPLICAS"} {
		if strings.Contains(text, "-"+p+" ") {
			return prefixes[p]
		}
	}
	for _, t := range authTexts {
		if strings.Contains(text, t) {
			return limit.ClassAuth
		}
	}
	if strings.Contains(text, "max number of clients") {
		return limit.ClassRefused
	}
	return limit.ClassScript
}

// isProtocol says that the client met bytes that are not Redis's protocol.
// go-redis has no value for it, only these texts.
func isProtocol(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "redis: can't parse") || strings.HasPrefix(text, "redis: invalid") ||
		strings.HasPrefix(text, "redis: unexpected") || strings.Contains(text, "protocol error")
}
