package envoytest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/parts"
)

// Render returns the text of the config with this run's folder, ports and time-out in place of the literal ones that
// every file under envoy/ uses and names in its head. The files so run as they are, without a template language.
func (c Config) Render(dir string) (string, error) {
	text, err := c.text()
	if err != nil {
		return "", err
	}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	text = strings.NewReplacer(
		"/tmp/weir", dir,
		"port_value: 10000", "port_value: "+strconv.Itoa(c.Port),
		"port_value: 9901", "port_value: "+strconv.Itoa(c.AdminPort),
		" timeout: 0.05s", " timeout: "+seconds(timeout),
	).Replace(text)
	if len(c.Replace)%2 != 0 {
		return "", errors.New("render config: Replace needs pairs of old and new")
	}
	for i := 0; i < len(c.Replace); i += 2 {
		if !strings.Contains(text, c.Replace[i]) {
			return "", fmt.Errorf("render config: %q to be replaced does not occur", c.Replace[i])
		}
		text = strings.ReplaceAll(text, c.Replace[i], c.Replace[i+1])
	}
	return text, nil
}

func (c Config) text() (string, error) {
	switch {
	case c.File != "" && c.Text != "":
		return "", errors.New("render config: both File and Text are set")
	case c.Text != "":
		return c.Text, nil
	case c.File == "":
		return "", errors.New("render config: neither File nor Text is set")
	}
	root, err := parts.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(c.File)))
	if err != nil {
		return "", fmt.Errorf("render config: %w", err)
	}
	return string(text), nil
}

// seconds writes a duration as Envoy's YAML does.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// write puts the rendered config where Envoy reads it.
func (c Config) write(dir string) (string, error) {
	text, err := c.Render(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "envoy.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}
