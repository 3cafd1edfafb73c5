package doctest_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/weir-rl/weir/internal/doctest"
	"github.com/weir-rl/weir/internal/envoytest"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/sidecar"
)

func TestFencedYAMLLoads(t *testing.T) {
	_, docs, _ := repository(t)
	for _, d := range docs {
		for _, f := range d.Fences() {
			report(t, yamlProblems(t, f))
		}
	}
}

func yamlProblems(t *testing.T, f doctest.Fence) []string {
	name := fmt.Sprintf("%s:%d", f.Path, f.Line)
	switch {
	case f.Is("yaml policy"):
		return policyProblems(name, f.Body)
	case f.Is("yaml sidecar"):
		return settingsProblems(name, f.Body, false)
	case f.Is("yaml envoy"):
		return envoyProblems(t, name, f.Body)
	case f.Is("yaml envoy-fragment"):
		text, err := inFrame(f.Body)
		if err != nil {
			return []string{name + ": " + err.Error()}
		}
		return envoyProblems(t, name, text)
	}
	return nil
}

// policyProblems are all errors, and the warnings but for the failure modes that are not built yet.
func policyProblems(name, text string) []string {
	var problems []string
	_, faults := policy.Compile([]*policy.File{policy.Parse(name, []byte(text))}, policy.Options{})
	for _, f := range faults {
		if f.Severity == policy.SeverityError || f.Severity == policy.SeverityWarning && f.Code != policy.CodeActsAsClosed {
			problems = append(problems, f.Error())
		}
	}
	return problems
}

// settingsProblems are the faults; of a snippet only those of what stands in it, since it need not be whole.
func settingsProblems(name, text string, whole bool) []string {
	var problems []string
	_, faults := sidecar.Load(sidecar.Inputs{File: name, Data: []byte(text)})
	for _, f := range faults {
		if whole || f.Place != "" {
			problems = append(problems, f.Error())
		}
	}
	return problems
}

func envoyProblems(t *testing.T, name, text string) []string {
	t.Helper()
	if err := envoytest.Validate(t, envoytest.Config{Text: text}); err != nil {
		return []string{name + ": " + err.Error()}
	}
	return nil
}

// inFrame makes a whole Envoy configuration of a fragment, whose keys say where its parts belong: http_filters and
// local_reply_config in the HTTP connection manager, routes in its virtual host, clusters beside the listener. The
// router and a cluster named app are added.
func inFrame(fragment string) (string, error) {
	parts := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(fragment), &parts); err != nil {
		return "", err
	}
	list := func(key string) []any {
		l, _ := parts[key].([]any)
		delete(parts, key)
		return l
	}
	typed := func(name string) map[string]any {
		return map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters." + name}
	}
	manager := typed("network.http_connection_manager.v3.HttpConnectionManager")
	manager["stat_prefix"] = "in"
	manager["http_filters"] = append(list("http_filters"), map[string]any{
		"name": "router", "typed_config": typed("http.router.v3.Router"),
	})
	if config, ok := parts["local_reply_config"]; ok {
		manager["local_reply_config"] = config
		delete(parts, "local_reply_config")
	}
	manager["route_config"] = map[string]any{"virtual_hosts": []any{
		map[string]any{"name": "all", "domains": []any{"*"}, "routes": list("routes")},
	}}
	clusters := append(list("clusters"), map[string]any{"name": "app", "type": "STATIC"})
	if len(parts) > 0 {
		return "", fmt.Errorf("the fragment has keys without a place in the frame: %v", slices.Sorted(maps.Keys(parts)))
	}
	frame, err := yaml.Marshal(map[string]any{"static_resources": map[string]any{
		"listeners": []any{map[string]any{
			"name":    "ingress",
			"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 10000}},
			"filter_chains": []any{map[string]any{"filters": []any{
				map[string]any{"name": "http", "typed_config": manager},
			}}},
		}},
		"clusters": clusters,
	}})
	return string(frame), err
}

// TestBadYAMLIsFound shows that each of the four checks can fail.
func TestBadYAMLIsFound(t *testing.T) {
	for kind, bad := range map[string][]struct{ text, want string }{
		"yaml policy": {
			{"domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: fortnight, requests_per_unit: 1}\n", "fortnight"},
			{"domain: d\nshadow_mode: true\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n", "shadow_mode"},
		},
		"yaml sidecar":        {{"store: {type: redish}\n", "redish"}, {"stroe: {type: redis}\n", "stroe"}},
		"yaml envoy":          {{"static_resources: {listener: []}\n", "listener"}},
		"yaml envoy-fragment": {{"http_filter: []\n", "http_filter"}, {"clusters: [{name: weir, typ: STATIC}]\n", "typ"}},
	} {
		for _, b := range bad {
			f := doctest.Fence{Path: "bad.md", Line: 1, Info: strings.Fields(kind), Body: b.text}
			got := strings.Join(yamlProblems(t, f), "\n")
			if !strings.Contains(got, b.want) {
				t.Errorf("%s %q: problems %q, want one with %q", kind, b.text, got, b.want)
			}
		}
	}
	for kind, good := range map[string]string{
		"yaml policy":         "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
		"yaml sidecar":        "store: {type: memory}\n",
		"yaml envoy-fragment": "clusters: [{name: weir, type: STATIC}]\n",
	} {
		report(t, yamlProblems(t, doctest.Fence{Path: "good.md", Line: 1, Info: strings.Fields(kind), Body: good}))
	}
}

// TestShippedYAMLLoads loads every YAML file in config/ and envoy/: sidecar*.yaml as settings, what else is in config/
// as policies, the rest with Envoy.
func TestShippedYAMLLoads(t *testing.T) {
	root, _, _ := repository(t)
	count := map[string]int{}
	for _, folder := range []string{"config", "envoy"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(full string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(full, ".yaml") && !strings.HasSuffix(full, ".yml") {
				return err
			}
			text, err := os.ReadFile(full)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, full)
			if err != nil {
				return err
			}
			switch {
			case folder == "envoy":
				count["envoy"]++
				report(t, envoyProblems(t, rel, string(text)))
			case strings.HasPrefix(e.Name(), "sidecar"):
				count["settings"]++
				report(t, settingsProblems(rel, string(text), true))
			default:
				count["policy"]++
				report(t, policyProblems(rel, string(text)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"envoy", "settings", "policy"} {
		if count[kind] == 0 {
			t.Errorf("no file was taken for %s", kind)
		}
	}
}
