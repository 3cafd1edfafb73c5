package authority

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// VersionTTL is how long the store remembers a version of policies after the
// last sidecar that had it, or a higher one, was there to say so.
const VersionTTL = 7 * 24 * time.Hour

// versionKey stands before a namespace. No key of a state begins like this,
// since those go on with a brace.
const versionKey = "weir:1:version:"

var errBarred = errors.New("it could not be reached a moment ago")

// HighestVersion returns the highest version of policies that any sidecar of
// the namespace has recorded, and records own when it is that; 0 is none, and
// is not recorded. A lower own leaves the key and its TTL as they are, so that
// a version is forgotten after VersionTTL when nobody has it any more.
//
// Two calls at the same time can record the lower of two versions; the next
// call with the higher one mends that. It is for people to look at, no debit
// depends on it.
func (r *Redis) HighestVersion(ctx context.Context, namespace string, own uint64) (uint64, error) {
	if r.reach.barred(r.start.Add(r.local())) != limit.ClassNone {
		return 0, fmt.Errorf("highest policy version: %w", errBarred)
	}
	key := r.prefix + versionKey + namespace
	values, err := r.client.MGet(ctx, key).Result() // Unlike GET, it reads any type without an error.
	if err != nil {
		return 0, fmt.Errorf("highest policy version: %w", err)
	}
	highest := uint64(0)
	if len(values) == 1 {
		if text, ok := values[0].(string); ok {
			// What is no version was not written here, and counts as none.
			if n, err := strconv.ParseUint(text, 10, 64); err == nil && n <= limit.MaxVersion {
				highest = n
			}
		}
	}
	if own == 0 || own < highest {
		return highest, nil
	}
	if err := r.client.Set(ctx, key, strconv.FormatUint(own, 10), VersionTTL).Err(); err != nil {
		return 0, fmt.Errorf("record policy version: %w", err)
	}
	return own, nil
}
