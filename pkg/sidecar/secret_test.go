package sidecar_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/pkg/sidecar"
)

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
		notice  bool
		fault   string
	}{
		"plain":          {content: "s3cret", mode: 0o600, want: "s3cret"},
		"one line end":   {content: "s3cret\n", mode: 0o640, want: "s3cret"},
		"two line ends":  {content: "s3cret\n\n", mode: 0o600, want: "s3cret\n"},
		"windows":        {content: "s3cret\r\n", mode: 0o600, want: "s3cret"},
		"carriage only":  {content: "s3cret\r", mode: 0o600, want: "s3cret\r"},
		"spaces":         {content: " s3cret \n", mode: 0o600, want: " s3cret "},
		"open to all":    {content: "s3cret", mode: 0o644, want: "s3cret", notice: true},
		"empty":          {content: "", mode: 0o600, fault: "an empty secret"},
		"only a newline": {content: "\n", mode: 0o600, fault: "an empty secret"},
		"huge":           {content: strings.Repeat("x", 1<<17), mode: 0o600, fault: "larger than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(file, []byte(c.content), c.mode); err != nil {
				t.Fatal(err)
			}
			cfg := sidecar.Defaults()
			cfg.Store.SecretFile = file
			cfg.Policy.AllowEmpty = true
			p, faults := cfg.Prepare()
			if c.fault != "" {
				if len(faults) != 1 || !strings.Contains(faults[0].Error(), c.fault) {
					t.Fatalf("faults %v, want one of %q", faults, c.fault)
				}
				return
			}
			if len(faults) > 0 || p.Scheme.Secret != c.want {
				t.Errorf("secret %q, faults %v; want %q", p.Scheme.Secret, faults, c.want)
			}
			if (len(p.Notices) > 0) != c.notice {
				t.Errorf("notices %v, want one: %v", p.Notices, c.notice)
			}
		})
	}
	for name, file := range map[string]string{"missing": filepath.Join(dir, "nowhere"), "directory": dir} {
		cfg := sidecar.Defaults()
		cfg.Store.SecretFile = file
		cfg.Policy.AllowEmpty = true
		if _, faults := cfg.Prepare(); len(faults) != 1 {
			t.Errorf("%s: faults %v, want one", name, faults)
		}
	}
}
