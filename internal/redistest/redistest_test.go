package redistest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestSharedServerIsOne(t *testing.T) {
	a, b := redistest.Shared(t), redistest.Shared(t)
	if a.PID() != b.PID() {
		t.Errorf("two calls gave processes %d and %d, want one", a.PID(), b.PID())
	}
	a.MustDo(t, "SET", t.Name(), "1")
	if got := b.MustDo(t, "GET", t.Name()); got != "1" {
		t.Errorf("GET = %v, want what the other handle set", got)
	}
}

func TestAddresses(t *testing.T) {
	s := redistest.Start(t, redistest.WithTCP())
	if n := len(s.Socket()); n >= 108 {
		t.Errorf("the socket's path has %d bytes, more than the kernel takes", n)
	}
	if s.URL() != "unix://"+s.Socket() || s.TCPURL() != "redis://"+s.TCPAddr() {
		t.Errorf("URLs are %s and %s", s.URL(), s.TCPURL())
	}
	c, err := net.DialTimeout("tcp", s.TCPAddr(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 7)
	if _, err := c.Read(answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("PING over TCP answers %q, %v", answer, err)
	}
}

func TestReplies(t *testing.T) {
	s := redistest.Shared(t)
	reply := s.MustDo(t, "EVAL", "return {1, 'a\\r\\n', false, {2}, redis.status_reply('OK')}", "0")
	if got, want := fmt.Sprintf("%#v", reply), `[]interface {}{1, "a\r\n", interface {}(nil), []interface {}{2}, "OK"}`; got != want {
		t.Errorf("reply = %s, want %s", got, want)
	}
	_, err := s.Do("EVAL", "return redis.error_reply('MINE no')", "0")
	if e, ok := errors.AsType[redistest.Error](err); !ok || !strings.HasPrefix(string(e), "MINE no") {
		t.Errorf("error reply = %#v, want an Error that starts with its code", err)
	}
}

func TestPasswordAndMaxMemory(t *testing.T) {
	s := redistest.Start(t, redistest.WithPassword("open sesame"), redistest.WithMaxMemory("2mb"))
	if got := s.MustDo(t, "PING"); got != "PONG" {
		t.Errorf("PING = %v with the password, want PONG", got)
	}
	if got := fmt.Sprint(s.MustDo(t, "CONFIG", "GET", "requirepass")); got != "[requirepass open sesame]" {
		t.Errorf("requirepass is %s", got)
	}
	_, err := s.Do("SET", "big", strings.Repeat("x", 4<<20))
	for i := 0; err == nil && i < 10; i++ { // Memory is looked at before a command, so the one after is refused.
		_, err = s.Do("SET", "k"+strconv.Itoa(i), "x")
	}
	if e, ok := errors.AsType[redistest.Error](err); !ok || !strings.HasPrefix(string(e), "OOM") {
		t.Errorf("writing beyond maxmemory gives %v, want OOM", err)
	}
}

func TestPauseStallsAndResumeGoesOn(t *testing.T) {
	s := redistest.Start(t)
	s.Pause(t)
	c, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatalf("a paused server still accepts, but: %v", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 7)
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := c.Read(answer); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server answered %q, %v", answer[:n], err)
	}
	s.Resume(t)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("after Resume the answer is %q, %v", answer, err)
	}
}

func TestRestartKeepsAddressesAndDurableData(t *testing.T) {
	s := redistest.Start(t, redistest.WithTCP(), redistest.WithAppendOnly())
	socket, tcp, pid := s.Socket(), s.TCPAddr(), s.PID()
	s.MustDo(t, "SET", "k", "v")
	s.Kill(t)
	if _, err := s.Do("PING"); err == nil {
		t.Error("a killed server answered")
	}
	s.Restart(t)
	if s.Socket() != socket || s.TCPAddr() != tcp || s.PID() == pid {
		t.Errorf("after Restart: %s %s process %d, want %s %s and another process than %d", s.Socket(), s.TCPAddr(), s.PID(), socket, tcp, pid)
	}
	if got := s.MustDo(t, "GET", "k"); got != "v" {
		t.Errorf("GET = %v after kill -9 and restart with appendfsync always, want v", got)
	}
	s.Stop(t)
	s.Restart(t)
	s.Restart(t) // One that still runs is stopped first.
	if got := s.MustDo(t, "GET", "k"); got != "v" {
		t.Errorf("GET = %v after stop and restart, want v", got)
	}
}

func TestRestartWithoutPersistenceForgets(t *testing.T) {
	s := redistest.Start(t)
	s.MustDo(t, "SET", "k", "v")
	s.Restart(t)
	if got := s.MustDo(t, "GET", "k"); got != nil {
		t.Errorf("GET = %v after restart, want nothing: tests must not depend on a save", got)
	}
}

// TestClockMoves proves the shim of clock.c on the Redis at hand: TIME follows the offset both ways, outside and
// inside a script, and on a server that has long been running; the monotonic clock does not.
func TestClockMoves(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	inScript := func() time.Time {
		us := s.MustDo(t, "EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0")
		return time.UnixMicro(us.(int64))
	}
	near := func(what string, got time.Time, offset time.Duration) {
		t.Helper()
		// A minute covers any stall between the reading and now; the smallest offset below is an hour.
		if diff := time.Since(got) + offset; diff < -time.Minute || diff > time.Minute {
			t.Errorf("offset %v: %s is %v off", offset, what, diff)
		}
	}
	for _, offset := range []time.Duration{0, time.Hour, -time.Hour, 400 * 24 * time.Hour, -400 * 24 * time.Hour, 0} {
		s.SetClockOffset(offset)
		near("TIME", s.Time(t), offset)
		near("TIME in a script", inScript(), offset)
	}
}

// TestClockMovesOnlyTheWallClock asks each clock in a program of its own, since Redis shows no monotonic one.
func TestClockMovesOnlyTheWallClock(t *testing.T) {
	dir := t.TempDir()
	program, offsetFile := filepath.Join(dir, "clocks"), filepath.Join(dir, "offset")
	if out, err := exec.Command("cc", "-o", program, filepath.Join("testdata", "clocks.c")).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	library, err := redistest.ClockLibrary()
	if err != nil {
		t.Fatal(err)
	}
	read := func(env ...string) (clocks [5]int64) {
		t.Helper()
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(out), &clocks[0], &clocks[1], &clocks[2], &clocks[3], &clocks[4]); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return clocks
	}
	names := [5]string{"monotonic", "CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "gettimeofday", "time"}
	for _, offset := range []time.Duration{time.Hour, -time.Hour} {
		bytes := binary.NativeEndian.AppendUint64(nil, uint64(offset.Milliseconds()))
		if err := os.WriteFile(offsetFile, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		before := read()
		got := read("LD_PRELOAD="+library, "WEIR_CLOCK_FILE="+offsetFile)
		after := read()
		for i, name := range names {
			want := offset
			if i == 0 {
				want = 0
			}
			// The coarse clock and time() lag by up to a second, and not equally with and without the shim.
			low, high := before[i]+int64(want-time.Second), after[i]+int64(want+time.Second)
			if got[i] < low || got[i] > high {
				t.Errorf("offset %v: %s = %d, want between %d and %d", offset, name, got[i], low, high)
			}
		}
	}
}

// TestClockKeepsMilliseconds shows that a step is exact: what the server reads lies between what this process reads
// before and after, moved by the offset.
func TestClockKeepsMilliseconds(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	const offset = 1234567 * time.Millisecond
	s.SetClockOffset(offset)
	before := time.Now().Truncate(time.Microsecond).Round(0)
	got := s.Time(t).Add(-offset)
	after := time.Now().Round(0)
	if got.Before(before) || got.After(after) {
		t.Errorf("the server's time less the offset is %v, want between %v and %v", got, before, after)
	}
}

func TestClockSurvivesRestart(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	s.SetClockOffset(24 * time.Hour)
	s.Restart(t)
	if ahead := time.Until(s.Time(t)); ahead < 23*time.Hour {
		t.Errorf("after a restart the clock is %v ahead, want a day", ahead)
	}
}

func TestStopClock(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	for _, want := range []time.Time{time.UnixMicro(1_800_000_000_000_999), time.UnixMicro(1_000_000)} {
		s.StopClock(want)
		s.MustDo(t, "SET", "k", "v", "PX", "5000")
		for range 2 {
			if got := s.Time(t); !got.Equal(want) {
				t.Errorf("the clock stands at %v, want %v", got, want)
			}
		}
		if got := s.MustDo(t, "PTTL", "k"); got != int64(5000) {
			t.Errorf("PTTL = %v while the clock stands, want 5000", got)
		}
	}
	s.SetClockOffset(0)
	if got := time.Since(s.Time(t)).Abs(); got > time.Minute {
		t.Errorf("the clock that runs again is off by %v", got)
	}
}
