"""The report on a run: one HTML file with parameters, costs, and a check for visible seams.

| module          | content                                                                  |
|-----------------|--------------------------------------------------------------------------|
| `run_report`    | collects all measurements that a report shows                            |
| `volume_planes` | the volumes that a step reads and writes, and images of three planes     |
| `seam_measure`  | intensity steps across task boundaries, relative to steps beside them    |
| `report_page`   | the HTML page, section by section                                        |
| `report_markup` | HTML elements and SVG plots, which escape text from the run              |

A report does not execute code from the run, and does not change the run.
"""
