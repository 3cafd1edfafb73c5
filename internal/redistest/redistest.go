// Package redistest runs real Redis servers for tests: one per call, or one shared by a test binary.
//
// It assumes that redis-server can be found or fetched (package parts); otherwise the test fails and says how to get
// it, it never skips. Each server has a folder of its own, listens on a Unix socket with a short path and, on demand,
// on a free loopback port, and saves nothing unless asked to. It can be paused, killed, restarted with the same data
// and addresses, and given a wall clock that the test moves. A test's servers end with the test, and at the latest
// with the test binary. Servers are safe for concurrent use.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/parts"
)

// startLimit bounds start and stop. A start takes about 30 ms; two loaded cores and the race detector make it more.
const startLimit = 20 * time.Second

// commandLimit bounds one command of Do, so that a paused server fails a test instead of hanging it.
const commandLimit = 10 * time.Second

// Option changes how a server runs.
type Option func(*options)

type options struct {
	args     []string
	tcp      bool
	clock    bool
	password string
}

// WithArgs appends arguments to redis-server's command line, as in WithArgs("--maxmemory", "2mb").
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// WithTCP makes the server listen on a free loopback port too.
func WithTCP() Option {
	return func(o *options) { o.tcp = true }
}

// WithPassword makes the server require a password; Do gives it.
func WithPassword(password string) Option {
	return func(o *options) { o.password = password }
}

// WithAppendOnly makes every write durable before its reply, so that nothing acknowledged is lost by Kill.
func WithAppendOnly() Option {
	return WithArgs("--appendonly", "yes", "--appendfsync", "always")
}

// WithMaxMemory bounds the memory, as in WithMaxMemory("2mb"); what would exceed it is refused with OOM.
func WithMaxMemory(bytes string) Option {
	return WithArgs("--maxmemory", bytes, "--maxmemory-policy", "noeviction")
}

// WithClock gives the server a wall clock that SetClockOffset moves and StopClock stops. It needs a C compiler.
func WithClock() Option {
	return func(o *options) { o.clock = true }
}

// Server is a running redis-server, or one that was stopped and can be restarted.
type Server struct {
	dir     string
	binary  string
	options options
	port    int    // 0 without TCP.
	clock   *clock // nil without WithClock, as is preload.
	preload string

	mu      sync.Mutex
	process *parts.Process
	conn    *conn // The connection of Do, nil when there is none.
}

// Start runs a server until the end of the test. If the test fails, the server's log is shown.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := start(opts...)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("redistest: log of %s:\n%s", s.Socket(), s.Log())
		}
		if err := s.close(); err != nil {
			tb.Errorf("redistest: %v", err)
		}
	})
	return s
}

func start(opts ...Option) (*Server, error) {
	s := &Server{}
	for _, opt := range opts {
		opt(&s.options)
	}
	var err error
	if s.binary, err = parts.Find(parts.Redis); err != nil {
		return nil, err
	}
	if s.options.clock {
		if s.preload, err = clockLibrary(); err != nil {
			return nil, err
		}
	}
	if s.dir, err = parts.MkdirTemp("weir-redis-"); err != nil {
		return nil, err
	}
	if s.options.clock {
		if s.clock, err = newClock(s.dir); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	// Between choosing a free port and binding it another process may take it, so another one is tried then.
	for attempt := 1; ; attempt++ {
		if s.options.tcp {
			if s.port, err = freePort(); err != nil {
				return nil, errors.Join(err, s.close())
			}
		}
		err = s.launch()
		if err == nil {
			return s, nil
		}
		if attempt == 5 || !strings.Contains(s.Log(), "Address already in use") {
			return nil, errors.Join(fmt.Errorf("%w; its log:\n%s", err, s.Log()), s.close())
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("choose a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// launch starts the process and waits until it answers and has loaded its data.
func (s *Server) launch() error {
	args := []string{
		"--port", strconv.Itoa(s.port), // 0 means none.
		"--bind", "127.0.0.1",
		"--unixsocket", s.Socket(), "--unixsocketperm", "700",
		"--dir", s.dir, "--logfile", s.logPath(),
		"--save", "", "--daemonize", "no",
	}
	if s.options.password != "" {
		args = append(args, "--requirepass", s.options.password)
	}
	command := parts.Command{Path: s.binary, Args: append(args, s.options.args...)}
	if s.clock != nil {
		command.Env = []string{"LD_PRELOAD=" + s.preload, "WEIR_CLOCK_FILE=" + s.clock.file}
	}
	log, err := os.OpenFile(s.logPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command.Output = log // What goes wrong before redis-server opens its own log is on stderr.
	process, err := parts.Start(command)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = process
	err = parts.Poll(context.Background(), startLimit, func() error {
		if process.Ended() {
			return parts.Final(fmt.Errorf("redis-server ended while starting: %w", process.Err()))
		}
		_, err := s.doLocked("PING")
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for redis-server: %w", err), process.Kill())
	}
	return nil
}

func (s *Server) close() error {
	err := s.kill()
	if s.clock != nil {
		err = errors.Join(err, s.clock.close())
		s.clock = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Socket returns the path of the Unix socket. It stays the same over Restart.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// URL returns the Unix socket as a store URL, unix:///path.
func (s *Server) URL() string { return "unix://" + s.Socket() }

// TCPAddr returns the loopback address, host:port, of a server started WithTCP. It stays the same over Restart.
func (s *Server) TCPAddr() string {
	if s.port == 0 {
		panic("redistest: TCPAddr of a server that was not started WithTCP")
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// TCPURL returns the loopback address as a store URL, redis://host:port.
func (s *Server) TCPURL() string { return "redis://" + s.TCPAddr() }

// PID returns the process id of the server that runs or ran last.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.PID()
}

// Log returns what the server has logged so far.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// Stop ends the server with SIGTERM, as an orderly shutdown does. Restart brings it back.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.must(tb, "stop", func() error { return s.end().Stop(startLimit) })
}

// Kill ends the server with SIGKILL, as a crash does. Restart brings it back, with what it had on disk.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.must(tb, "kill", s.kill)
}

func (s *Server) kill() error {
	if s.process == nil {
		return nil
	}
	return s.end().Kill()
}

// Pause stalls the server: it accepts connections and answers nothing until Resume.
func (s *Server) Pause(tb testing.TB) {
	tb.Helper()
	s.must(tb, "pause", func() error { return s.running().Pause() })
}

// Resume ends a Pause.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	s.must(tb, "resume", func() error { return s.running().Resume() })
}

// Restart starts the server again after Stop or Kill, at the same addresses and over the same folder. One that still
// runs is stopped first.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.must(tb, "restart", func() error {
		if err := s.end().Stop(startLimit); err != nil {
			return err
		}
		return s.launch()
	})
}

func (s *Server) must(tb testing.TB, what string, do func() error) {
	tb.Helper()
	if err := do(); err != nil {
		tb.Fatalf("redistest: %s: %v; log:\n%s", what, err, s.Log())
	}
}

func (s *Server) running() *parts.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// end gives up the connection of Do, which is about to break, and returns the process that is to be ended.
func (s *Server) end() *parts.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked()
	return s.process
}

func (s *Server) dropLocked() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// SetClockOffset moves the wall clock of a server started WithClock: it reads the machine's time plus d, in whole
// milliseconds, from now on. The monotonic clock is not touched.
func (s *Server) SetClockOffset(d time.Duration) {
	if s.clock == nil {
		panic("redistest: SetClockOffset of a server that was not started WithClock")
	}
	s.clock.set(d)
}

// StopClock makes the wall clock of a server started WithClock read t, in whole microseconds, until the next StopClock
// or SetClockOffset. What depends on time can then be compared to the millisecond.
func (s *Server) StopClock(t time.Time) {
	if s.clock == nil {
		panic("redistest: StopClock of a server that was not started WithClock")
	}
	s.clock.stop(t)
}

// Do sends one command and returns its reply: string, int64, nil or []any of these. What Redis replies as an error is
// returned as an Error.
func (s *Server) Do(args ...string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doLocked(args...)
}

func (s *Server) doLocked(args ...string) (any, error) {
	if s.conn == nil {
		c, err := dial("unix", s.Socket(), commandLimit)
		if err != nil {
			return nil, err
		}
		s.conn = c
		if s.options.password != "" {
			if _, err := c.do([]string{"AUTH", s.options.password}, commandLimit); err != nil {
				s.dropLocked()
				return nil, err
			}
		}
	}
	reply, err := s.conn.do(args, commandLimit)
	if _, replied := errors.AsType[Error](err); err != nil && !replied {
		s.dropLocked() // Whatever it would say next belongs to another command.
	}
	return reply, err
}

// MustDo is Do for a test that does not expect an error.
func (s *Server) MustDo(tb testing.TB, args ...string) any {
	tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		tb.Fatalf("redistest: %q: %v", args, err)
	}
	return reply
}

// Time returns the server's wall clock.
func (s *Server) Time(tb testing.TB) time.Time {
	tb.Helper()
	return parseTime(tb, s.MustDo(tb, "TIME"))
}

func parseTime(tb testing.TB, reply any) time.Time {
	tb.Helper()
	var part [2]int64
	list, ok := reply.([]any)
	for i := range part {
		var err error
		if ok = ok && len(list) == 2; ok {
			part[i], err = strconv.ParseInt(fmt.Sprint(list[i]), 10, 64)
		}
		if !ok || err != nil {
			tb.Fatalf("redistest: TIME = %v, want seconds and microseconds", reply)
		}
	}
	return time.Unix(part[0], part[1]*1000)
}

// shared is the one server of a test binary, started by the first test that asks.
var shared struct {
	mu      sync.Mutex
	inMain  bool
	options []Option
	server  *Server
}

// Run runs a binary's tests and then ends the server that they shared, which the options are for; it returns the exit
// code. Use it as the whole of TestMain: os.Exit(redistest.Run(m)).
func Run(m *testing.M, opts ...Option) int {
	shared.mu.Lock()
	shared.inMain, shared.options = true, opts
	shared.mu.Unlock()
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		if err := shared.server.close(); err != nil {
			fmt.Fprintln(os.Stderr, "redistest:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Shared returns the one server of this test binary, whose TestMain calls Run. Tests that share it keep to keys of
// their own and neither stop nor flush it.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		tb.Fatal("redistest: Shared needs `func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }` in the package")
	}
	if shared.server == nil {
		s, err := start(shared.options...)
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		shared.server = s
	}
	return shared.server
}
