package authority

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// patience bounds what a test waits for. It decides nothing: whatever takes
// that long has failed.
const patience = 20 * time.Second

// rig is an authority that runs, and what it counts.
type rig struct {
	*Redis
	registry *prometheus.Registry
}

// run starts an authority on a store and stops it with the test.
func run(t *testing.T, url string, change ...func(*Config)) *rig {
	t.Helper()
	g := &rig{registry: prometheus.NewRegistry()}
	cfg := Config{URL: url, DialTimeout: patience} // it bounds replies too
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if g.Redis, err = New(cfg, Deps{Registerer: g.registry}); err != nil {
		t.Fatalf("New(%q): %v", url, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = g.Close()
	})
	return g
}

// ask debits one request with that much time.
func (g *rig) ask(within time.Duration, checks ...limit.Check) *limit.Ask {
	a := &limit.Ask{Checks: checks, Deadline: time.Now().Add(within)}
	g.Debit(context.Background(), a)
	return a
}

// spend debits one hit of key A in a window of a week and returns the verdict.
func (g *rig) spend(within time.Duration) limit.Verdict {
	return g.ask(within, take(keyA, weekly, 1)).Checks[0].Verdict
}

const week = 7 * 24 * 3_600_000

var weekly = fixed(1_000_000, week)

// counter returns the sum of a counter, or of a histogram's observations; with
// a label value, of that series only.
func (g *rig) counter(t *testing.T, name string, label ...string) float64 {
	t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(label) > 0 && m.GetLabel()[0].GetValue() != label[0] {
				continue
			}
			sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// wantErrors asserts weir_authority_errors_total: these requests by class, and
// none of any other.
func (g *rig) wantErrors(t *testing.T, want map[limit.Class]float64) {
	t.Helper()
	for _, c := range limit.Classes() {
		if got := g.counter(t, "weir_authority_errors_total", c.String()); got != want[c] {
			t.Errorf("weir_authority_errors_total{class=%q} = %v, want %v", c, got, want[c])
		}
	}
}

// eventually polls until ok, and fails the test when that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// wantRecovery asserts that the authority answers again by itself.
func (g *rig) wantRecovery(t *testing.T) {
	t.Helper()
	eventually(t, "the store answers", func() bool { return g.spend(time.Second).Outcome == limit.Allow })
}

// used returns what is stored of key A.
func used(t *testing.T, s *redistest.Server) int64 {
	t.Helper()
	v := s.MustDo(t, "GET", keyName(keyA))
	if v == nil {
		return 0
	}
	state, form := limit.DecodeState([]byte(v.(string)))
	if form != limit.Known {
		t.Fatalf("key A holds %q", v)
	}
	return state.Used
}

// evalshaCalls is how many script calls the server has executed or refused.
func evalshaCalls(t *testing.T, s *redistest.Server) int {
	t.Helper()
	stats := s.MustDo(t, "INFO", "commandstats").(string)
	_, rest, ok := strings.Cut(stats, "cmdstat_evalsha:calls=")
	n := 0
	if ok {
		if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
			t.Fatalf("INFO commandstats = %q: %v", stats, err)
		}
	}
	return n
}

// listen serves every connection of a free loopback port with f, which need not
// close it, and returns the store URL. It ends with the test.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "redis://" + l.Addr().String()
}

// pipe connects c with a Unix socket until one of them ends.
func pipe(c net.Conn, socket string) {
	up, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.Close()
	}()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}

// proxy passes RESP between an authority and a real Redis, counts the script
// calls and may do something to their replies.
type proxy struct {
	url   string
	calls atomic.Int64

	// onReply, when set, is called with the reply to each script call, and
	// returns what the client gets to see of it; ok false breaks the
	// connection after that.
	onReply atomic.Pointer[func(reply []byte) (shown []byte, ok bool)]
}

func newProxy(t *testing.T, s *redistest.Server) *proxy {
	t.Helper()
	p := new(proxy)
	p.url = listen(t, func(c net.Conn) {
		up, err := net.Dial("unix", s.Socket())
		if err != nil {
			return
		}
		defer up.Close()
		from, to := bufio.NewReader(c), bufio.NewReader(up)
		for {
			name, command, err := readCommand(from)
			if err != nil {
				return
			}
			if _, err := up.Write(command); err != nil {
				return
			}
			reply, err := readReply(to)
			if err != nil {
				return
			}
			ok := true
			if name == "evalsha" {
				p.calls.Add(1)
				if f := p.onReply.Load(); f != nil {
					reply, ok = (*f)(reply)
				}
			}
			if _, err := c.Write(reply); err != nil || !ok {
				return
			}
		}
	})
	return p
}

func (p *proxy) setOnReply(f func([]byte) ([]byte, bool)) { p.onReply.Store(&f) }

// readCommand reads one command as it is, and its name.
func readCommand(r *bufio.Reader) (name string, raw []byte, err error) {
	var n int
	raw, err = r.ReadBytes('\n')
	if err != nil {
		return "", nil, err
	}
	if _, err := fmt.Sscanf(string(raw), "*%d\r\n", &n); err != nil {
		return "", nil, fmt.Errorf("command %q: %w", raw, err)
	}
	for i := range n {
		part, err := readReply(r)
		if err != nil {
			return "", nil, err
		}
		if i == 0 {
			_, text, _ := strings.Cut(string(part), "\r\n")
			name = strings.ToLower(strings.TrimSpace(text))
		}
		raw = append(raw, part...)
	}
	return name, raw, nil
}

// readReply reads one reply as it is.
func readReply(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	if n < 0 {
		return line, nil // nil
	}
	switch line[0] {
	case '$':
		body := make([]byte, n+2)
		_, err := io.ReadFull(r, body)
		return append(line, body...), err
	case '*':
		for range n {
			part, err := readReply(r)
			if err != nil {
				return nil, err
			}
			line = append(line, part...)
		}
	}
	return line, nil
}

// load has that many callers do the same again and again, each until it says
// no more or the load is stopped, which waits for all of them.
func load(callers int, do func() bool) (stop func()) {
	var (
		wg    sync.WaitGroup
		ended atomic.Bool
	)
	for range callers {
		wg.Go(func() {
			for !ended.Load() && do() {
			}
		})
	}
	return func() {
		ended.Store(true)
		wg.Wait()
	}
}
