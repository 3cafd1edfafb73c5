package authority

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	"encoding/hex"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// epoch is where the clocks of labs start: a multiple of every window that the
// scenarios use, so that instants below are read as offsets into a window.
const epoch = 1_800_000_000_000

// reporter is what a scenario reports to: a test, or the mutant harness, which
// wants to know whether an assertion failed.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// script is one text of the debit script under the name that Redis gives it.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return script{text, hex.EncodeToString(sum[:])}
}

// lab runs the script in a real Redis whose clock stands where the test puts
// it, so that results can be compared to the millisecond. It goes the way that
// a flight goes: the same encoding, EVALSHA, the same decoding.
type lab struct {
	reporter
	server *redistest.Server
	client *redis.Client
	script script
	now    int64 // ms since the epoch: where the server's clock stands
	args   *arguments
	broken error // the script failed instead of answering
}

// newLab starts a Redis with a clock that stands at epoch. Keys expire only
// when they are met, so that a clock that goes forth and back does not depend
// on what the background expiry reached meanwhile.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{
		reporter: t,
		server:   redistest.Start(t, redistest.WithClock(), withDebug(t)),
		args:     newArguments(""),
	}
	l.client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: l.server.Socket(), Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		ReadTimeout: time.Minute, PoolSize: 1,
	})
	t.Cleanup(func() { _ = l.client.Close() })
	l.server.MustDo(t, "DEBUG", "SET-ACTIVE-EXPIRE", "0")
	l.use(newScript(debitScript))
	l.at(epoch)
	return l
}

// withDebug allows DEBUG, which Redis 6.2 always does and knows no option for.
func withDebug(t *testing.T) redistest.Option {
	t.Helper()
	binary, err := parts.Find(parts.Redis)
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(binary, "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", binary, err)
	}
	if bytes.Contains(version, []byte("v=6.")) {
		return redistest.WithArgs()
	}
	return redistest.WithArgs("--enable-debug-command", "local")
}

// use makes s the script of the following calls.
func (l *lab) use(s script) {
	l.Helper()
	if err := l.client.ScriptLoad(context.Background(), s.text).Err(); err != nil {
		l.breakOff(err)
	}
	l.script = s
}

func (l *lab) breakOff(err error) {
	l.Helper()
	l.broken = err
	l.Fatalf("the script failed: %v", err)
}

// at puts the store's clock to an instant, forward or back. (Valkey counts on
// from its last reading of the clock for as long as a turn of its event loop
// takes, so there nothing can be compared to the millisecond.)
func (l *lab) at(ms int64) {
	l.now = ms
	l.server.StopClock(time.UnixMilli(ms).Add(999 * time.Microsecond))
}

// clear forgets all keys.
func (l *lab) clear() { l.do("FLUSHALL") }

// do runs one plain command.
func (l *lab) do(args ...any) any {
	l.Helper()
	v, err := l.client.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it unwrapped
		l.Fatalf("%v = %v", args, err)
	}
	return v
}

// forever is a not-after that never passes.
const forever = limit.Exact - 1

// timed is one request of a batch.
type timed struct {
	*limit.Ask
	notAfter int64
}

// batch runs requests as one script call and writes their verdicts in place.
// estimate is the store's time as the caller believes it.
func (l *lab) batch(estimate int64, asks ...timed) (now, foreign int64) {
	l.Helper()
	text, err := l.evalsha(estimate, asks).Text()
	if err != nil {
		l.breakOff(err)
	}
	return l.answer(text, asks)
}

func (l *lab) evalsha(estimate int64, asks []timed) *redis.Cmd {
	l.args.reset()
	for _, a := range asks {
		l.args.add(a.Ask, a.notAfter)
	}
	args := l.args.build(len(asks), estimate)
	args[1] = l.script.sha
	return l.client.Do(context.Background(), args...)
}

func (l *lab) answer(text string, asks []timed) (now, foreign int64) {
	l.Helper()
	checks := 0
	for _, a := range asks {
		checks += len(a.Checks)
	}
	now, foreign, verdicts, err := decodeReply(text, checks, nil)
	if err != nil {
		l.breakOff(err)
	}
	for _, a := range asks {
		for i := range a.Checks {
			a.Checks[i].Verdict = verdicts[i]
		}
		verdicts = verdicts[len(a.Checks):]
	}
	return now, foreign
}

// debit runs one request alone, without a deadline.
func (l *lab) debit(checks ...limit.Check) []limit.Verdict {
	l.Helper()
	ask := limit.Ask{Checks: checks}
	l.batch(l.now, timed{&ask, forever})
	return verdicts(&ask)
}

func verdicts(a *limit.Ask) []limit.Verdict {
	vs := make([]limit.Verdict, len(a.Checks))
	for i := range a.Checks {
		vs[i] = a.Checks[i].Verdict
	}
	return vs
}

// keyNumber returns the n-th key of a test; every third one has a tag.
func keyNumber(n int) limit.Key {
	k := limit.Key{Digest: [16]byte{0: 'k', 14: byte(n >> 8), 15: byte(n)}}
	if n%3 == 2 {
		k.Tag, k.Tagged = [8]byte{'t'}, true
	}
	return k
}

func keyName(k limit.Key) string { return string(k.Append(nil, "")) }

// stored returns a key's state and TTL in ms; ok is false for an absent key.
func (l *lab) stored(k limit.Key) (s limit.State, ttl int64, ok bool) {
	l.Helper()
	v := l.do("GET", keyName(k))
	if v == nil {
		return s, 0, false
	}
	s, form := limit.DecodeState([]byte(v.(string)))
	if form != limit.Known {
		l.Fatalf("stored %q has form %d, want a known state", v, form)
	}
	return s, l.do("PTTL", keyName(k)).(int64), true
}

// plant stores a state as an earlier call would have left it.
func (l *lab) plant(k limit.Key, s limit.State, ttl int64) {
	l.Helper()
	l.plantBytes(k, limit.AppendState(nil, &s), ttl)
}

func (l *lab) plantBytes(k limit.Key, b []byte, ttl int64) {
	l.Helper()
	if ttl <= 0 {
		l.do("SET", keyName(k), b)
		return
	}
	l.do("SET", keyName(k), b, "PX", ttl)
}

// wantStored asserts a key's state, to the byte, and its TTL.
func (l *lab) wantStored(k limit.Key, want limit.State, ttl int64) {
	l.Helper()
	got, gotTTL, ok := l.stored(k)
	if !ok {
		l.Errorf("the key is absent, want %+v", want)
		return
	}
	if !bytes.Equal(limit.AppendState(nil, &got), limit.AppendState(nil, &want)) {
		l.Errorf("stored %+v, want %+v", got, want)
	}
	if gotTTL != ttl {
		l.Errorf("TTL = %d ms, want %d", gotTTL, ttl)
	}
}

// wantAbsent asserts that a key does not exist.
func (l *lab) wantAbsent(k limit.Key) {
	l.Helper()
	if n := l.do("EXISTS", keyName(k)); n != int64(0) {
		l.Errorf("the key exists as %q, want it absent", fmt.Sprint(l.do("GET", keyName(k))))
	}
}
