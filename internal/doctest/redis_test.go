package doctest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/authority"
	"github.com/weir-rl/weir/pkg/limit"
)

// TestDocumentedACLSuffices gives the user of docs/OPERATIONS.md to a real Redis, and debits as that user. Without any
// one of its commands something fails, so the line has none too many either.
func TestDocumentedACLSuffices(t *testing.T) {
	_, docs, _ := repository(t)
	redis := redistest.Start(t)
	found := 0
	for _, d := range docs {
		for _, f := range d.Fences() {
			if !f.Is("text redis-acl") {
				continue
			}
			found++
			words := strings.Fields(f.Body)
			if err := debitAs(t, redis, words); err != nil {
				t.Errorf("%s:%d: %v", f.Path, f.Line, err)
			}
			for i, w := range words {
				if !strings.HasPrefix(w, "+") {
					continue
				}
				fewer := append(append([]string(nil), words[:i]...), words[i+1:]...)
				if err := debitAs(t, redis, fewer); err == nil {
					t.Errorf("%s:%d: everything works without %s", f.Path, f.Line, w)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("%d fences are marked text redis-acl, want 1", found)
	}
}

// debitAs makes the user of one line of an ACL file, and has it do what makes the script use each of its commands: a
// debit, one by an older policy version, and a refund of both, with a script that is not loaded yet.
func debitAs(t *testing.T, redis *redistest.Server, words []string) error {
	t.Helper()
	for _, command := range [][]string{
		{"FLUSHALL"},
		{"SCRIPT", "FLUSH"},
		append([]string{"ACL", "SETUSER", words[1], "reset"}, words[2:]...),
	} {
		redis.MustDo(t, command...)
	}
	a, err := authority.New(
		authority.Config{URL: fmt.Sprintf("unix://%s:PASSWORD@%s", words[1], redis.Socket())},
		authority.Deps{Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		stop()
		if err := errors.Join(<-ended, a.Close()); err != nil {
			t.Errorf("end: %v", err)
		}
	}()
	var scheme limit.Scheme
	key := scheme.Maker("northstar", []limit.PathLevel{{Key: "user"}}, "").Key([]limit.Entry{{Key: "user", Value: "U-17"}})
	rule := func(version uint64) *limit.Params {
		p := &limit.Params{Algorithm: limit.FixedWindow, Version: version, Limit: 10, Window: 365 * 86400 * 1000, Capacity: 10}
		p.Rate(p.Limit, p.Window)
		return p
	}
	for _, c := range []limit.Check{
		{Key: key, Params: rule(2), Cost: 1, Kind: limit.Enforced},
		{Key: key, Params: rule(1), Cost: 1, Kind: limit.Enforced},
		{Key: key, Params: rule(2), Cost: 2, Kind: limit.Refund},
	} {
		ask := &limit.Ask{Checks: []limit.Check{c}, Deadline: time.Now().Add(20 * time.Second)}
		a.Debit(ctx, ask)
		if v := ask.Checks[0].Verdict; v.Outcome != limit.Allow {
			return fmt.Errorf("%s of cost %d: %s, class %s", c.Kind, c.Cost, v.Outcome, v.Class)
		}
	}
	return nil
}

// TestCompatibilityIsWhatRuns holds the versions that the README names to the parts that the tests get.
func TestCompatibilityIsWhatRuns(t *testing.T) {
	root, docs, _ := repository(t)
	text, err := os.ReadFile(filepath.Join(root, "hack", "parts.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	pins := string(text)
	report(t, compatibilityProblems(docs[0].Text, pins))
	wantProblems(t, compatibilityProblems("| Envoy | 1.39 |\n| Redis | 7.0.15, one |\n", pins), "Envoy")
	wantProblems(t, compatibilityProblems("| Envoy | 1.40 |\n| Redis | 7.0.1 |\n", pins), "Redis")
}

func compatibilityProblems(text, pins string) []string {
	var problems []string
	for _, row := range []struct {
		name string
		cell *regexp.Regexp
		pin  string
	}{
		{"Envoy", regexp.MustCompile(`(?m)^\| Envoy \| ([0-9.]+)`), "\tenvoy-server\t"},
		{"Redis", regexp.MustCompile(`(?m)^\| Redis \| ([0-9.]+)`), "\tredis-server\t5:"},
	} {
		m := row.cell.FindStringSubmatch(text)
		// The pins go on with the rest of a version (.0) or with what Debian adds (-1~deb12).
		if m == nil || !strings.Contains(pins, row.pin+m[1]+".") && !strings.Contains(pins, row.pin+m[1]+"-") {
			problems = append(problems, fmt.Sprintf("%s: the README says %q, which is not what hack/parts.tsv has", row.name, m))
		}
	}
	return problems
}
