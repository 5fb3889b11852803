// render prints what a chart makes of values, by Helm's own loader, schema check and engine, without a cluster.
//
//	render CHART [-f VALUES]... [-name NAME] [-namespace NAMESPACE] [-upgrade] [-crds] [-notes]
//
// VALUES is a file, or - for the standard input; later ones win. Exit code 1, with the reason on stderr: a value that the
// chart does not know or its schema refuses, or a template that fails. Rendering is strict: a template that asks for a
// value that nothing gives fails.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	release "helm.sh/helm/v4/pkg/release/v1/util"
)

type words []string

func (w *words) String() string         { return strings.Join(*w, " ") }
func (w *words) Set(value string) error { *w = append(*w, value); return nil }

type request struct {
	values, versions words
	release          common.ReleaseOptions
	crds, notes      bool
}

func main() {
	var asked request
	flags := flag.NewFlagSet("render", flag.ExitOnError)
	flags.Var(&asked.values, "f", "file of values, or -")
	flags.Var(&asked.versions, "api", "further API version that the cluster has, as monitoring.coreos.com/v1")
	flags.StringVar(&asked.release.Name, "name", "vmpin", "of the release")
	flags.StringVar(&asked.release.Namespace, "namespace", "vmpin", "of the release")
	flags.IntVar(&asked.release.Revision, "revision", 1, "of the release")
	flags.BoolVar(&asked.release.IsUpgrade, "upgrade", false, "as an upgrade; else as an installation")
	flags.BoolVar(&asked.crds, "crds", false, "print the files of crds/, too")
	flags.BoolVar(&asked.notes, "notes", false, "print the notes alone")
	if len(os.Args) < 2 {
		flags.Usage()
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:]) // exits itself
	asked.release.IsInstall = !asked.release.IsUpgrade
	if err := render(os.Args[1], asked, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(directory string, asked request, out io.Writer) error {
	loaded, err := loader.LoadDir(directory)
	if err != nil {
		return err
	}
	if err := loaded.Validate(); err != nil {
		return err
	}
	given, err := read(asked.values)
	if err != nil {
		return err
	}
	if err := known(loaded, given); err != nil {
		return err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(capabilities.APIVersions, asked.versions...)
	values, err := util.ToRenderValues(loaded, given, asked.release, capabilities)
	if err != nil {
		return err
	}
	files, err := engine.Engine{Strict: true}.Render(loaded, values)
	if err != nil {
		return err
	}
	notes := path.Join(loaded.Name(), "templates", "NOTES.txt")
	if asked.notes {
		_, err := io.WriteString(out, files[notes])
		return err
	}
	delete(files, notes)
	return write(out, loaded, files, asked.crds)
}

func read(names []string) (map[string]any, error) {
	values := map[string]any{}
	for _, name := range names {
		path := name
		if name == "-" {
			path = "/dev/stdin"
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		more, err := common.ReadValues(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		values = loader.MergeMaps(values, more)
	}
	return values, nil
}

// known refuses what values.yaml has not: Helm itself ignores it unless the schema forbids it.
func known(loaded *chart.Chart, given map[string]any) error {
	if loaded.Schema == nil {
		return errors.New("the chart has no values.schema.json")
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := loaded.Values[name]; !ok && name != "global" {
			return fmt.Errorf("unknown value %q", name)
		}
	}
	return nil
}

// write prints the objects in the order in which Helm installs them, hooks last.
func write(out io.Writer, loaded *chart.Chart, files map[string]string, crds bool) error {
	hooks, manifests, err := release.SortManifests(files, nil, release.InstallOrder)
	if err != nil {
		return err
	}
	if crds {
		for _, crd := range loaded.CRDObjects() {
			fmt.Fprintf(out, "---\n# Source: %s\n%s\n", crd.Filename, crd.File.Data)
		}
	}
	for _, manifest := range manifests {
		fmt.Fprintf(out, "---\n# Source: %s\n%s\n", manifest.Name, manifest.Content)
	}
	for _, hook := range hooks {
		fmt.Fprintf(out, "---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	return nil
}
