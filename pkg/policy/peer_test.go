package policy_test

import (
	"fmt"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
)

// This file is the second, obvious reading of the peer's format: yaml.v2, which
// envoyproxy/ratelimit itself is built on, and its rules restated from their
// description. The tests hold ours to it. Where we differ on purpose, the test
// that meets the difference says so.

// peerRoot and the types below are the shape of a file.
type peerRoot struct {
	Domain      string           `yaml:"domain"`
	Descriptors []peerDescriptor `yaml:"descriptors"`
}

type peerDescriptor struct {
	Key            string           `yaml:"key"`
	Value          string           `yaml:"value"`
	RateLimit      *peerLimit       `yaml:"rate_limit"`
	Descriptors    []peerDescriptor `yaml:"descriptors"`
	ShadowMode     bool             `yaml:"shadow_mode"`
	QuotaMode      bool             `yaml:"quota_mode"`
	DetailedMetric bool             `yaml:"detailed_metric"`
	ValueToMetric  bool             `yaml:"value_to_metric"`
	ShareThreshold bool             `yaml:"share_threshold"`
	Metadata       map[string]any   `yaml:"metadata"`
}

type peerLimit struct {
	RequestsPerUnit uint32     `yaml:"requests_per_unit"`
	Unit            string     `yaml:"unit"`
	Unlimited       bool       `yaml:"unlimited"`
	Name            string     `yaml:"name"`
	Replaces        []peerName `yaml:"replaces"`
}

type peerName struct {
	Name string `yaml:"name"`
}

var peerAllowed = func() map[string]bool {
	m := map[string]bool{}
	for _, k := range strings.Fields(`domain key value descriptors rate_limit unit requests_per_unit unlimited
		shadow_mode quota_mode name replaces detailed_metric value_to_metric share_threshold metadata`) {
		m[k] = true
	}
	return m
}()

// peerLoad reads one file as the peer does, and returns its rules as text, one
// a line, or why it refuses the file.
func peerLoad(data []byte) (rules []string, err error) {
	generic := map[any]any{}
	if err := yamlv2.Unmarshal(data, &generic); err != nil {
		return nil, err
	}
	if err := peerKeysOK(generic); err != nil {
		return nil, err
	}
	var root peerRoot
	if err := yamlv2.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	if root.Domain == "" {
		return nil, fmt.Errorf("empty domain")
	}
	return peerLevel(root.Domain, "", root.Descriptors)
}

func peerKeysOK(m map[any]any) error {
	for k, v := range m {
		s, ok := k.(string)
		if !ok || !peerAllowed[s] {
			return fmt.Errorf("key %v", k)
		}
		if s == "metadata" {
			continue
		}
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				below, ok := e.(map[any]any)
				if !ok {
					return fmt.Errorf("list of %v", e)
				}
				if err := peerKeysOK(below); err != nil {
					return err
				}
			}
		case map[any]any:
			if err := peerKeysOK(v); err != nil {
				return err
			}
		case string, int, bool, nil:
		default:
			return fmt.Errorf("leaf %T", v)
		}
	}
	return nil
}

func peerLevel(domain, above string, ds []peerDescriptor) ([]string, error) {
	var rules []string
	seen := map[string]bool{}
	for _, d := range ds {
		if d.Key == "" {
			return nil, fmt.Errorf("empty key")
		}
		// The peer joins key and value, and so takes k_v and k, v for the same.
		joined := d.Key
		if d.Value != "" {
			joined += "_" + d.Value
		}
		if seen[joined] {
			return nil, errPeerDuplicate
		}
		seen[joined] = true
		if d.ShareThreshold && !strings.Contains(joined, "*") {
			return nil, fmt.Errorf("share_threshold")
		}
		if l := d.RateLimit; l != nil {
			unit := strings.ToUpper(l.Unit)
			known := strings.Contains(" SECOND MINUTE HOUR DAY WEEK MONTH YEAR ", " "+unit+" ") && unit != ""
			if l.Unlimited == known {
				return nil, fmt.Errorf("unit %q", l.Unit)
			}
			if l.Unlimited {
				unit = ""
			}
			var replaces []string
			for _, r := range l.Replaces {
				if r.Name == "" || r.Name == l.Name {
					return nil, fmt.Errorf("replaces %q", r.Name)
				}
				replaces = append(replaces, r.Name)
			}
			per := l.RequestsPerUnit
			if l.Unlimited {
				per = 0
			}
			rules = append(rules, fmt.Sprintf("%s%s %d/%s unlimited=%t name=%q replaces=%q shadow=%t quota=%t detailed=%t value_to_metric=%t share=%t metadata=%s",
				domain+".", above+joined, per, unit, l.Unlimited, l.Name, replaces, d.ShadowMode, d.QuotaMode, d.DetailedMetric, d.ValueToMetric, d.ShareThreshold, peerMeta(d.Metadata)))
		}
		below, err := peerLevel(domain, above+joined+".", d.Descriptors)
		if err != nil {
			return nil, err
		}
		rules = append(rules, below...)
	}
	return rules, nil
}

var errPeerDuplicate = fmt.Errorf("duplicate composite key")

// peerMeta prints metadata as the Struct that the peer makes of it.
func peerMeta(m map[string]any) string {
	if len(m) == 0 {
		return "none"
	}
	out := map[string]any{}
	for k, v := range m {
		out[k] = peerMetaValue(v)
	}
	return fmt.Sprint(out)
}

func peerMetaValue(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := map[string]any{}
		for k, x := range v {
			m[fmt.Sprint(k)] = peerMetaValue(x)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, x := range v {
			l[i] = peerMetaValue(x)
		}
		return l
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return v
}
