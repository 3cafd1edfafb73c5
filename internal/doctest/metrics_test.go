package doctest_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weir-rl/weir/internal/doctest"
	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
	"github.com/weir-rl/weir/pkg/sidecar"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/METRICS.md from the registry; new metrics get the unit ?, to be filled in")

const (
	metricsFile  = "docs/METRICS.md"
	metricsBegin = "<!-- metrics:"
	metricsEnd   = "<!-- end -->"
)

// everyCounter is a policy whose requests below make every labelled counter appear.
const everyCounter = `
domain: api
descriptors:
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1, on_store_failure: closed}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 1, on_store_failure: closed}
`

// metric is one row of the tables.
type metric struct{ name, kind, unit, labels, meaning string }

func (m metric) row() string {
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", m.name, m.kind, m.unit, m.labels, m.meaning)
}

// section is one of the tables, with the store type whose sidecars have its metrics; "" is every sidecar.
type section struct{ title, store string }

var sections = []section{
	{"Every sidecar", ""},
	{"With `store.type: redis`", sidecar.StoreRedis},
	{"With `store.type: memory`", sidecar.StoreMemory},
}

// registries returns that of a sidecar of each store type. The one with a store in memory has answered requests; the
// one with a Redis has none to talk to.
func registries(t *testing.T) map[string]*prometheus.Registry {
	t.Helper()
	dir, err := parts.MkdirTemp("weir-metrics-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(everyCounter), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string]*prometheus.Registry{}
	for _, store := range []string{sidecar.StoreMemory, sidecar.StoreRedis} {
		c := sidecar.Defaults()
		c.RLS.TCP, c.RLS.Unix.Path, c.Ops.Address, c.Admin.Address = "", filepath.Join(dir, store+".sock"), "", ""
		c.Policy.Paths = []string{file}
		c.Store.Type, c.Store.URL = store, "redis://127.0.0.1:1/0"
		c.Decision.Budget = time.Minute // So that a slow machine fails no test.
		all[store] = prometheus.NewRegistry()
		s, err := sidecar.New(sidecar.Options{Config: c, Registry: all[store], Build: sidecar.Build{Version: "v0"}})
		if err != nil {
			t.Fatal(err)
		}
		if store == sidecar.StoreMemory {
			answer(t, s, "unix://"+c.RLS.Unix.Path)
		}
	}
	return all
}

// answer runs the sidecar for one request of each kind.
func answer(t *testing.T, s *sidecar.Sidecar, target string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Started():
	case err := <-ended:
		t.Fatalf("the sidecar ended before it started: %v", err)
	}
	for _, d := range []pipeline.Descriptor{
		{Entries: []limit.Entry{{Key: "bucket", Value: "a refund"}}, Hits: 1, HasHits: true, Negative: true},
		{Entries: []limit.Entry{{Key: "bucket", Value: "more than its budget"}}, Hits: 2, HasHits: true},
	} {
		if _, err := rls.Call(ctx, target, &pipeline.Request{Domain: "api", Descriptors: []pipeline.Descriptor{d}}); err != nil {
			t.Errorf("call: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// described is how the registry describes its metrics, also those of vectors without a series.
var described = regexp.MustCompile(`fqName: "(weir_[^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: {.*}, variableLabels: {(.*?)}`)

// inRegistry returns the weir_ metrics of a registry by name, without units.
func inRegistry(t *testing.T, reg *prometheus.Registry) map[string]metric {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	found := map[string]metric{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			if strings.Contains(d.String(), "weir_") {
				t.Fatalf("a description of another form: %s", d)
			}
			continue
		}
		labels := "–"
		if m[3] != "" {
			labels = "`" + strings.Join(strings.Split(m[3], ","), "`, `") + "`"
		}
		found[m[1]] = metric{name: m[1], labels: labels, meaning: strings.ReplaceAll(m[2], `\"`, `"`)}
	}
	return found
}

// types returns the types of what the registries have series of.
func types(t *testing.T, all map[string]*prometheus.Registry) map[string]string {
	t.Helper()
	kinds := map[string]string{}
	for _, reg := range all {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			kinds[f.GetName()] = strings.ToLower(f.GetType().String())
		}
	}
	return kinds
}

// wanted is what the tables must say; units are those that they have now.
func wanted(t *testing.T, all map[string]*prometheus.Registry, units map[string]string) map[section][]metric {
	t.Helper()
	kinds := types(t, all)
	redis, memory := inRegistry(t, all[sidecar.StoreRedis]), inRegistry(t, all[sidecar.StoreMemory])
	want := map[section][]metric{}
	add := func(s section, m metric) {
		m.kind, m.unit = kinds[m.name], units[m.name]
		if m.kind == "" {
			t.Errorf("%s has no series in any of the sidecars: make everyCounter and answer reach it", m.name)
		}
		if m.unit == "" {
			m.unit = "?"
		}
		want[s] = append(want[s], m)
	}
	for name, m := range redis {
		if _, both := memory[name]; both {
			add(sections[0], m)
		} else {
			add(sections[1], m)
		}
	}
	for name, m := range memory {
		if _, both := redis[name]; !both {
			add(sections[2], m)
		}
	}
	for _, rows := range want {
		slices.SortFunc(rows, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	}
	return want
}

func tables(want map[section][]metric) string {
	var b strings.Builder
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n| name | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n", s.title)
		for _, m := range want[s] {
			b.WriteString(m.row())
		}
	}
	return b.String() + "\n"
}

// row matches a row of the tables: name and unit are what it keeps.
var row = regexp.MustCompile("(?m)^\\| `(weir_[a-z0-9_]+)` \\| [a-z]+ \\| ([^|]*) \\|")

func unitsOf(text string) map[string]string {
	units := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		units[m[1]] = m[2]
	}
	return units
}

// metricsProblems compares a document with the registries. With -update it returns the document mended.
func metricsProblems(t *testing.T, text string, all map[string]*prometheus.Registry) (problems []string, mended string) {
	t.Helper()
	begin, end := strings.Index(text, metricsBegin), strings.Index(text, metricsEnd)
	if begin < 0 || end < begin {
		return []string{"the marks of the tables are missing"}, text
	}
	begin += strings.Index(text[begin:], "\n") + 1
	want := tables(wanted(t, all, unitsOf(text[begin:end])))
	if diff := cmp.Diff(text[begin:end], want); diff != "" {
		problems = append(problems, "the tables differ from the registry; run go test ./internal/doctest -update\n"+diff)
	}
	for name, unit := range unitsOf(want) {
		if unit == "?" {
			problems = append(problems, name+" has no unit")
		}
		if strings.Contains(unit, "second") != strings.HasSuffix(name, "_seconds") {
			problems = append(problems, fmt.Sprintf("%s does not name its unit %s", name, unit))
		}
	}
	return problems, text[:begin] + want + text[end:]
}

func TestMetricsAreDocumented(t *testing.T) {
	root, _, _ := repository(t)
	path := filepath.Join(root, metricsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := registries(t)
	problems, mended := metricsProblems(t, string(text), all)
	if *update && len(problems) > 0 {
		if err := os.WriteFile(path, []byte(mended), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	report(t, problems)

	// Bad documents are found.
	for what, bad := range map[string]string{
		"a metric that does not exist": strings.Replace(mended, "`weir_build_info`", "`weir_build_infos`", 1),
		"a missing metric":             regexp.MustCompile("(?m)^\\| `weir_rls_panics_total`.*\n").ReplaceAllString(mended, ""),
		"another type":                 strings.Replace(mended, "| counter |", "| gauge |", 1),
		"other labels":                 strings.Replace(mended, "`source`, `cause`", "`cause`", 1),
		"another meaning":              strings.Replace(mended, "Always 1", "Always 2", 1),
		"a missing unit":               regexp.MustCompile("(`weir_rls_panics_total` \\| counter \\|) [^|]*").ReplaceAllString(mended, "$1 ? "),
		"a unit that the name lacks":   regexp.MustCompile("(`weir_rls_panics_total` \\| counter \\|) [^|]*").ReplaceAllString(mended, "$1 seconds "),
		"no marks":                     strings.Replace(mended, metricsEnd, "", 1),
	} {
		if bad == mended {
			t.Errorf("%s: the bad document is the good one", what)
		}
		if problems, _ := metricsProblems(t, bad, all); len(problems) == 0 {
			t.Errorf("%s: not found", what)
		}
	}
}

func TestMetricsFollowTheConventions(t *testing.T) {
	lint := func(reg prometheus.Gatherer) []string {
		found, err := testutil.GatherAndLint(reg)
		if err != nil {
			t.Fatal(err)
		}
		var problems []string
		for _, p := range found {
			problems = append(problems, p.Metric+": "+p.Text)
		}
		return problems
	}
	for _, reg := range registries(t) {
		report(t, lint(reg))
	}
	bad := prometheus.NewRegistry()
	bad.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_things", Help: "Things."}))
	wantProblems(t, lint(bad), "weir_things: counter metrics should have \"_total\" suffix")
}

// closedSets are the labels whose values the program fixes, with all of them.
func closedSets(t *testing.T, all map[string]*prometheus.Registry) map[string][]string {
	t.Helper()
	sets := map[string][]string{"code": nil, "outcome": nil}
	for _, reg := range all {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					// These two exist with all their values from the start.
					if _, ok := sets[l.GetName()]; ok && strings.HasPrefix(f.GetName(), "weir_") && !slices.Contains(sets[l.GetName()], l.GetValue()) {
						sets[l.GetName()] = append(sets[l.GetName()], l.GetValue())
					}
				}
			}
		}
	}
	for _, v := range limit.Sources() {
		sets["source"] = append(sets["source"], v.String())
	}
	for _, v := range limit.Causes() {
		sets["cause"] = append(sets["cause"], v.String())
	}
	for _, v := range limit.Classes() {
		sets["class"] = append(sets["class"], v.String())
	}
	for _, values := range sets {
		slices.Sort(values)
	}
	return sets
}

var (
	labelHead = regexp.MustCompile("(?m)^### `([a-z]+)`$")
	valueCell = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|")
)

// labelProblems compares the tables below the heading of each label with what the label can be.
func labelProblems(text string, sets map[string][]string, labels []string) []string {
	var problems []string
	heads := labelHead.FindAllStringSubmatchIndex(text, -1)
	found := map[string]bool{}
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		label := text[h[2]:h[3]]
		found[label] = true
		var values []string
		for _, m := range valueCell.FindAllStringSubmatch(text[h[1]:end], -1) {
			values = append(values, m[1])
		}
		slices.Sort(values)
		if diff := cmp.Diff(sets[label], values); diff != "" {
			problems = append(problems, fmt.Sprintf("the values of label %s (- code, + document):\n%s", label, diff))
		}
	}
	for _, l := range labels {
		if !found[l] {
			problems = append(problems, "label "+l+" has no heading")
		}
	}
	return problems
}

// classRow matches a class and what it means.
var classRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (yes|–) \\| (yes|–) \\| (yes|–) \\|")

func classProblems(text string) []string {
	said := map[string][]string{}
	for _, m := range classRow.FindAllStringSubmatch(text, -1) {
		said[m[1]] = m[2:]
	}
	word := map[bool]string{true: "yes", false: "–"}
	var problems []string
	for _, c := range limit.Classes() {
		want := []string{word[c.Repeatable()], word[c.CountsForBreaker()], word[c.Ambiguous()]}
		if !slices.Equal(said[c.String()], want) {
			problems = append(problems, fmt.Sprintf("class %s is %v (repeatable, breaker, ambiguous), the document says %v", c, want, said[c.String()]))
		}
	}
	return problems
}

func TestLabelValuesAreDocumented(t *testing.T) {
	_, docs, _ := repository(t)
	i := slices.IndexFunc(docs, func(d doctest.Document) bool { return d.Path == metricsFile })
	text, all := docs[i].Text, registries(t)
	sets := closedSets(t, all)
	var labels []string
	for _, reg := range all {
		for _, m := range inRegistry(t, reg) {
			for l := range strings.SplitSeq(strings.ReplaceAll(m.labels, "`", ""), ", ") {
				if l != "–" && !slices.Contains(labels, l) {
					labels = append(labels, l)
				}
			}
		}
	}
	report(t, labelProblems(text, sets, labels))
	report(t, classProblems(text))

	for what, bad := range map[string]string{
		"a missing value":   strings.Replace(text, "| `negcache` |", "| negcache |", 1),
		"a value too many":  strings.Replace(text, "| `lease` |", "| `least` |", 1),
		"a missing heading": strings.Replace(text, "### `rule`", "### rule", 1),
	} {
		if len(labelProblems(bad, sets, labels)) == 0 {
			t.Errorf("%s: not found", what)
		}
	}
	if len(classProblems(strings.Replace(text, "| `late` | yes |", "| `late` | – |", 1))) == 0 {
		t.Error("another meaning of a class: not found")
	}
}
