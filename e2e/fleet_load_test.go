package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

// request is one request of domain fleet with a cost of one; each descriptor is written "key=value,key=value".
func request(descriptors ...string) *pipeline.Request {
	r := &pipeline.Request{Domain: "fleet"}
	for _, text := range descriptors {
		var d pipeline.Descriptor
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, limit.Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// said returns one value of an answer's metadata.
func said(a *rls.Answer, name string) string {
	_, after, _ := strings.Cut(a.Text(), "\nmetadata: "+name+": \"")
	value, _, _ := strings.Cut(after, "\"\n")
	return value
}

// outcome is what callers were told.
type outcome struct {
	answers  int
	admitted map[string]int // by the label of the request
	denied   map[string]int
	sources  map[string]int // by source and node, as "authority 0"
	causes   map[string]int
	lost     int // calls that ended without an answer
}

func newOutcome() outcome {
	return outcome{admitted: map[string]int{}, denied: map[string]int{}, sources: map[string]int{}, causes: map[string]int{}}
}

// source counts the answers of all nodes by who decided.
func (o outcome) source(name string) (n int) {
	for key, count := range o.sources {
		if of, _, _ := strings.Cut(key, " "); of == name {
			n += count
		}
	}
	return n
}

// load is many callers at once. Caller i calls node i modulo their number, over a connection of its own, as the
// workers of an Envoy do.
type load struct {
	nodes   []node
	callers int
	calls   int // of each caller, at most
	make    func(caller, call int) (label string, r *pipeline.Request)
	mayFail bool // whether a call may end without an answer; the caller then goes to the next node

	stop    chan struct{}
	group   sync.WaitGroup
	mu      sync.Mutex
	outcome outcome
}

// start lets the callers go. They end with the test.
func (l *load) start(t *testing.T) *load {
	t.Helper()
	l.stop, l.outcome = make(chan struct{}), newOutcome()
	for caller := range l.callers {
		l.group.Go(func() { l.run(t, caller) })
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) run(t *testing.T, caller int) {
	at := caller % len(l.nodes)
	var client *rls.Client
	defer func() {
		if client != nil {
			client.Close()
		}
	}()
	for call := range l.calls {
		select {
		case <-l.stop:
			return
		default:
		}
		if client == nil {
			var err error
			if client, err = rls.NewClient(l.nodes[at].rls); err != nil {
				t.Error(err)
				return
			}
		}
		label, r := l.make(caller, call)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		answer, err := client.Call(ctx, r)
		cancel()
		l.note(at, label, answer, err)
		if err == nil {
			continue
		}
		if !l.mayFail {
			t.Errorf("caller %d, call %d: %v", caller, call, err)
			return
		}
		client.Close()
		client, at = nil, (at+1)%len(l.nodes)
	}
}

func (l *load) note(at int, label string, answer *rls.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.outcome.lost++
		return
	}
	l.outcome.answers++
	if answer.Code() == pipeline.OK {
		l.outcome.admitted[label]++
	} else {
		l.outcome.denied[label]++
	}
	l.outcome.sources[fmt.Sprintf("%s %d", said(answer, "source"), at)]++
	l.outcome.causes[said(answer, "cause")]++
}

// sofar returns what was answered until now.
func (l *load) sofar() outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.outcome
	c.admitted, c.denied = maps.Clone(c.admitted), maps.Clone(c.denied)
	c.sources, c.causes = maps.Clone(c.sources), maps.Clone(c.causes)
	return c
}

// eventually waits for a condition.
func eventually(t *testing.T, complaint string, met func() bool) {
	t.Helper()
	err := parts.Poll(t.Context(), patience, func() error {
		if !met() {
			return errors.New(complaint)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition while the callers go on. They must have calls left until it holds.
func (l *load) until(t *testing.T, what string, met func(outcome) bool) {
	t.Helper()
	err := parts.Poll(t.Context(), patience, func() error {
		if !met(l.sofar()) {
			return errors.New(what)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v; so far: %+v", err, l.sofar())
	}
}

// more waits for n further answers.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	before := l.sofar().answers
	l.until(t, fmt.Sprintf("fewer than %d more answers", n), func(now outcome) bool { return now.answers >= before+n })
}

// wait returns what was answered once all callers have made all their calls.
func (l *load) wait() outcome {
	l.group.Wait()
	return l.sofar()
}

// end lets the callers finish the calls at hand.
func (l *load) end() outcome {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	return l.wait()
}
