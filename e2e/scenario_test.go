package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/rls"
)

// madeByHand begins the names of scenarios whose faults are made inside the process; those of a real Redis have tests
// of their own.
const madeByHand = "failure"

// TestScenarios plays the scenarios of pkg/pipeline, the peer's cases among them, once more: over the wire, against
// a real Redis whose clock the scenario moves. The answers are told in the same words, and must be the same. Where
// Weir differs from the peer on purpose, the files say why.
func TestScenarios(t *testing.T) {
	redis := redistest.Start(t, redistest.WithClock())
	files, err := filepath.Glob("../pkg/pipeline/testdata/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("scenarios: %v, %d files, want at least 10", err, len(files))
	}
	for _, file := range files {
		scenario := strings.TrimSuffix(filepath.Base(file), ".txt")
		if strings.HasPrefix(scenario, madeByHand) {
			continue
		}
		t.Run(scenario, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := &player{redis: redis, now: time.UnixMilli(20_000 * 86_400_000)}
			redis.StopClock(p.now)
			got := p.play(t, string(text))
			if d := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("%s (-file +got):\n%s", file, d)
			}
		})
	}
}

// player plays one scenario.
type player struct {
	redis  *redistest.Server
	now    time.Time
	weir   *weir
	client client
}

// play returns the text with what came out in place of the output in it.
func (p *player) play(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			out.WriteString(lines[i] + "\n")
			i++
			continue
		}
		end := i + slices.Index(lines[i:], "----")
		if end < i {
			t.Fatalf("the block of %q has no ----", lines[i])
		}
		out.WriteString(strings.Join(lines[i:end+1], "\n") + "\n")
		out.WriteString(p.run(t, strings.Fields(lines[i]), lines[i+1:end]))
		for i = end; i < len(lines) && lines[i] != ""; i++ {
		}
	}
	return out.String()
}

func (p *player) run(t *testing.T, command, input []string) string {
	t.Helper()
	switch command[0] {
	case "policy":
		p.start(t, strings.Join(input, "\n"))
		return "ok\n"
	case "clock":
		d, err := time.ParseDuration(command[1])
		if err != nil {
			t.Fatal(err)
		}
		p.now = p.now.Add(d)
		p.redis.StopClock(p.now)
		return p.now.UTC().Format("2006-01-02 15:04:05.000") + "\n"
	case "store":
		// In these files it shows that what follows needs no store. Here there is one, and the answers are the same.
		return "ok\n"
	case "call":
		return p.call(t, command[1:], input)
	case "metrics":
		return p.metrics(t)
	}
	t.Fatalf("command %q is not known", command[0])
	return ""
}

// start puts a sidecar with this policy in the place of the one before; the store keeps what it has.
func (p *player) start(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	for i, file := range strings.Split(text, "\n---\n") {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := startWeir(settings(p.redis.URL(), name(t), "", dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	p.weir, p.client = w, dial(t, w.Addrs().TCP)
}

func (p *player) call(t *testing.T, args, input []string) string {
	t.Helper()
	r := pipeline.Request{Domain: args[0]}
	times := 1
	for _, line := range input {
		r.Descriptors = append(r.Descriptors, descriptor(t, line))
	}
	for _, a := range args[1:] {
		switch hits, has := strings.CutPrefix(a, "hits="); {
		case has:
			r.HitsAddend = uint32(number(t, hits))
		case a[0] == 'x':
			times = int(number(t, a[1:]))
		case a == "malformed":
			// One entry more than a descriptor may have.
			r.Descriptors[0].Entries = slices.Repeat(r.Descriptors[0].Entries[:1], rls.MaxEntries+1)
		default:
			t.Fatalf("call: %q is not known", a)
		}
	}
	var out strings.Builder
	for range times {
		answer, err := p.client.call(t, &r)
		if err != nil {
			t.Fatalf("call %s %q: %v", args, input, err)
		}
		out.WriteString(show(answer) + "\n")
	}
	return out.String()
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// descriptor reads key=value,key=value [hits=n] [negative] [limit=n/unit]; values may have Go's escapes.
func descriptor(t *testing.T, line string) (d pipeline.Descriptor) {
	t.Helper()
	fields := strings.Fields(line)
	for _, kv := range strings.Split(fields[0], ",") {
		k, v, _ := strings.Cut(kv, "=")
		if k == "" {
			continue // A descriptor without entries.
		}
		if u, err := strconv.Unquote(`"` + v + `"`); err == nil {
			v = u
		}
		d.Entries = append(d.Entries, limit.Entry{Key: k, Value: v})
	}
	for _, f := range fields[1:] {
		what, value, _ := strings.Cut(f, "=")
		switch what {
		case "hits":
			d.Hits, d.HasHits = number(t, value), true
		case "negative":
			d.Negative = true
		case "limit":
			n, unit, _ := strings.Cut(value, "/")
			u, _ := policy.ParseUnit(unit)
			d.Limit = &pipeline.Override{RequestsPerUnit: uint32(number(t, n)), Unit: u, Multiplier: 1}
		default:
			t.Fatalf("descriptor: %q is not known", f)
		}
	}
	return d
}

// show tells an answer in the words of the scenarios.
func show(r *rlsv3.RateLimitResponse) string {
	var b strings.Builder
	about := r.GetDynamicMetadata().GetFields()
	say := func(word, key string) {
		if v := about[key].GetStringValue(); v != "" {
			b.WriteString(word + v)
		}
	}
	b.WriteString(r.GetOverallCode().String())
	say(" ", "source")
	say("/", "cause")
	say(" by ", "rule")
	if r.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		retry := " no retry"
		for _, h := range r.GetResponseHeadersToAdd() {
			if h.GetKey() == "retry-after-ms" {
				retry = " retry " + h.GetValue() + " ms"
			}
		}
		b.WriteString(retry)
	}
	say(" as ", "deny_as")
	say(" shadow ", "shadow")
	for _, s := range r.GetStatuses() {
		b.WriteString(" | " + s.GetCode().String())
		l := s.GetCurrentLimit()
		if l != nil {
			fmt.Fprintf(&b, " %d/", l.GetRequestsPerUnit())
			if m := l.GetUnitMultiplier(); m != nil {
				fmt.Fprintf(&b, "%d", m.GetValue())
			}
			b.WriteString(strings.ToLower(l.GetUnit().String()))
			if l.GetName() != "" {
				fmt.Fprintf(&b, " %q", l.GetName())
			}
		}
		if l != nil || s.GetLimitRemaining() > 0 {
			fmt.Fprintf(&b, " %d left", s.GetLimitRemaining())
		}
		if reset := s.GetDurationUntilReset(); reset != nil {
			fmt.Fprintf(&b, " %ds", reset.GetSeconds())
		}
	}
	return b.String()
}

// metrics are the counters of the pipeline that are not zero.
func (p *player) metrics(t *testing.T) string {
	t.Helper()
	families, err := p.weir.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		family, ofPipeline := strings.CutPrefix(f.GetName(), "weir_pipeline_")
		for _, m := range f.GetMetric() {
			if !ofPipeline || m.GetCounter().GetValue() == 0 {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			fmt.Fprintf(&b, "%s %s %v\n", family, strings.Join(labels, ","), m.GetCounter().GetValue())
		}
	}
	return b.String()
}
