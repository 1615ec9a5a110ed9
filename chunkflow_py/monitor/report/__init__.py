"""The report on a run: one HTML file that says what ran, what it took, and whether seams show.

| module       | what                                                                        |
|--------------|-----------------------------------------------------------------------------|
| ``gather``   | what the records of a stage say together: one pass, in constant memory      |
| ``attempts`` | what failed, why, and about how many seconds were lost                      |
| ``places``   | the volumes that a stage reads and writes, as its spec says                 |
| ``planes``   | three planes of a volume, as PNG images                                     |
| ``seams``    | differences across the faces of tasks, against those inside                 |
| ``measured`` | all of it for a run                                                         |
| ``markup``   | HTML in which everything is escaped                                         |
| ``charts``   | plots as SVG                                                                |
| ``page``     | the file                                                                    |

Nothing is executed of what a run holds, and nothing is changed.
"""
