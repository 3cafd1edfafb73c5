// Package archtest holds the rules of docs/ARCHITECTURE.md that say who may import whom and who may read the clock.
//
// The rules are the tables of rules.go; the functions here compare them with packages and source text and return one
// line per breach, each with the way out. They assume what `go list` says and look at code without its tests: a test
// may use what it likes. A package or dependency that no table knows is a breach too, so each is chosen on purpose.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Package is what `go list -json` says about one package.
type Package struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	Imports    []string
}

// module is the path of this module, with which its own packages start.
const module = "github.com/weir-rl/weir/"

// CheckImports returns the breaches of the import rules by these packages.
func CheckImports(packages []Package) []string {
	standard := map[string]bool{}
	for _, p := range packages {
		standard[p.ImportPath] = p.Standard
	}
	var breaches []string
	for _, p := range packages {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || !strings.HasPrefix(name, "pkg/") && !strings.HasPrefix(name, "cmd/") && !strings.HasPrefix(name, "internal/") {
			continue // Dependencies are not ours to judge, and hack/ holds tools that no product code reaches.
		}
		if _, known := mayImport[name]; !known && strings.HasPrefix(name, "pkg/") {
			breaches = append(breaches, fmt.Sprintf("%s is not in mayImport of internal/archtest: say there what it may import", name))
			continue
		}
		for _, imported := range p.Imports {
			if breach := checkImport(name, imported, standard[imported]); breach != "" {
				breaches = append(breaches, breach)
			}
		}
	}
	return breaches
}

func checkImport(name, imported string, standard bool) string {
	if own, ours := strings.CutPrefix(imported, module); ours {
		return checkOwn(name, own)
	}
	if standard {
		for _, rule := range standardOnlyIn {
			if rule.matches(imported) && !rule.allows(name) {
				return fmt.Sprintf("%s imports %s, which is for %s: %s", name, imported, strings.Join(rule.packages, ", "), rule.why)
			}
		}
		return ""
	}
	if strings.HasPrefix(name, "internal/") {
		return "" // The test packages may lean on what tests lean on.
	}
	for _, rule := range outsideOnlyIn {
		if rule.matches(imported) {
			if rule.allows(name) {
				return ""
			}
			return fmt.Sprintf("%s imports %s, which is for %s: %s", name, imported, strings.Join(rule.packages, ", "), rule.why)
		}
	}
	return fmt.Sprintf("%s imports %s, which is not in outsideOnlyIn of internal/archtest: a new dependency needs a reason and one owner", name, imported)
}

func checkOwn(name, imported string) string {
	switch {
	case strings.HasPrefix(name, "cmd/") && strings.HasPrefix(imported, "pkg/"):
		return "" // Commands stand above everything.
	case strings.HasPrefix(name, "internal/") && strings.HasPrefix(imported, "internal/"):
		return ""
	case strings.HasPrefix(name, "internal/"):
		return fmt.Sprintf("%s imports %s: what runs servers for tests must not depend on what is tested", name, imported)
	case strings.HasPrefix(imported, "internal/"):
		return fmt.Sprintf("%s imports %s: internal/ is for tests and tools", name, imported)
	case slices.Contains(mayImport[name], imported):
		return ""
	}
	return fmt.Sprintf("%s imports %s: imports point down; declare a small interface beside its use instead", name, imported)
}

// CheckClock returns the breaches of the clock rule in one source file, named by its path below the repository.
func CheckClock(file string, source []byte) ([]string, error) {
	if mayReadClock(file) {
		return nil, nil
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	timeName := ""
	for _, spec := range tree.Imports {
		if imported, _ := strconv.Unquote(spec.Path.Value); imported == "time" {
			timeName = "time"
			if spec.Name != nil {
				timeName = spec.Name.Name
			}
		}
	}
	var breaches []string
	if timeName == "." {
		return []string{fmt.Sprintf("%s imports time into its own names, which hides the clock: import it by its name", file)}, nil
	}
	ast.Inspect(tree, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if left, ok := selector.X.(*ast.Ident); ok && timeName != "" && left.Name == timeName && slices.Contains(clockReaders, selector.Sel.Name) {
			position := set.Position(node.Pos())
			breaches = append(breaches, fmt.Sprintf("%s:%d reads time.%s: take the time as an argument, or name the file and its reason in clockFiles of internal/archtest", file, position.Line, selector.Sel.Name))
		}
		return true
	})
	return breaches, nil
}

func mayReadClock(file string) bool {
	if strings.HasSuffix(file, "_test.go") || slices.Contains(clockFiles, file) {
		return true
	}
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		if slices.Contains(wiring, dir) {
			return true
		}
	}
	return false
}
